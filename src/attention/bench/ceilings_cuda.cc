// The ceilings of a CUDA device. Times are the host's, around work long enough that a launch does not show.
#include <algorithm>

#include "attention/bench/ceilings.h"
#include "platform/cuda/ceilings.h"

namespace quire::attention::bench {
namespace {

class CudaMeter final : public CeilingMeter {
 public:
  CudaMeter(platform::Device& device, platform::Stream& stream, const Options& options)
      : device_(device),
        stream_(stream),
        options_(options),
        cache_bytes_(platform::cuda::cache_bytes(stream)) {
    const std::int64_t wanted = options.rotation_bytes > 0 ? options.rotation_bytes : 16 * cache_bytes_;
    bytes_ = (wanted + 2 * kBlock - 1) / (2 * kBlock) * (2 * kBlock);
  }

  Status prepare() {
    QUIRE_TRY(buffer, device_.allocate(bytes_, "bench"));
    buffer_ = std::move(buffer);
    for (const DType type : {DType::bf16, DType::fp8_e4m3}) {
      auto product = platform::cuda::make_product(type, device_, stream_);
      // An older GPU has no fp8 units; without bf16 there is nothing to compare attention with.
      if (!product.ok() && type == DType::bf16) return product.error();
      if (product.ok()) products_.push_back({std::string(to_string(type)), std::move(*product), {}});
    }
    stream_.fill(buffer_->data(), 0x3c, bytes_);
    stream_.synchronize();
    return {};
  }

  double read() override {
    const double speed = rate(options_.round_seconds, [&] {
      constexpr int kPasses = 8;
      for (int i = 0; i < kPasses; ++i)
        platform::cuda::read_all(buffer_->data(), bytes_, buffer_->data(), stream_);
      stream_.synchronize();
      return kPasses * static_cast<double>(bytes_);
    });
    read_.push_back(speed);
    return speed;
  }

  double copy() override {
    char* base = buffer_->as<char>();
    const std::int64_t half = bytes_ / 2;
    const double speed = rate(options_.round_seconds, [&] {
      constexpr int kPasses = 8;
      for (int i = 0; i < kPasses; ++i) stream_.copy(base + half, base, half);
      stream_.synchronize();
      return kPasses * 2.0 * static_cast<double>(half);
    });
    copy_.push_back(speed);
    return speed;
  }

  double matmul() override {
    for (Measured& m : products_)
      m.rates.push_back(rate(options_.round_seconds, [&] {
        constexpr int kPasses = 10;
        for (int i = 0; i < kPasses; ++i) m.product->run(stream_);
        stream_.synchronize();
        return kPasses * m.product->flops();
      }));
    return products_[0].rates.back();
  }

  void launches() override {
    constexpr int kCount = 200;
    std::vector<double> single;
    for (int i = 0; i < kCount; ++i) {
      const double start = steady_now();
      platform::cuda::launch_empty(stream_);
      stream_.synchronize();
      single.push_back((steady_now() - start) * 1e6);
    }
    launch_.push_back(median(single));
    stream_.begin_capture();
    for (int i = 0; i < kCount; ++i) platform::cuda::launch_empty(stream_);
    const std::unique_ptr<platform::Graph> graph = stream_.end_capture();
    stream_.launch(*graph);
    stream_.synchronize();
    constexpr int kLaunches = 5;
    const double start = steady_now();
    for (int i = 0; i < kLaunches; ++i) stream_.launch(*graph);
    stream_.synchronize();
    node_.push_back((steady_now() - start) * 1e6 / (kCount * kLaunches));
  }

  Ceilings summary() const override {
    Ceilings c;
    c.read_bytes_s = median(read_);
    c.copy_bytes_s = median(copy_);
    for (const Measured& m : products_) c.matmul_flop_s.emplace_back(m.type, median(m.rates));
    c.launch_us = median(launch_);
    c.graph_node_us = median(node_);
    c.threads = 1;
    c.cache_bytes = cache_bytes_;
    return c;
  }

  std::int64_t rotation_bytes() const override { return bytes_; }

 private:
  struct Measured {
    std::string type;
    std::unique_ptr<platform::cuda::Product> product;
    std::vector<double> rates;
  };
  platform::Device& device_;
  platform::Stream& stream_;
  const Options options_;
  const std::int64_t cache_bytes_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<platform::Buffer> buffer_;
  std::vector<Measured> products_;
  std::vector<double> read_, copy_, launch_, node_;
};

}  // namespace

Result<std::unique_ptr<CeilingMeter>> make_cuda_meter(platform::Device& device, platform::Stream& stream,
                                                      const Options& options) {
  auto meter = std::make_unique<CudaMeter>(device, stream, options);
  QUIRE_TRY_STATUS(meter->prepare());
  return std::unique_ptr<CeilingMeter>(std::move(meter));
}

}  // namespace quire::attention::bench
