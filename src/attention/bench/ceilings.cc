#include "attention/bench/ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "platform/cpu/isa.h"
#include "platform/cpu/stream.h"

namespace quire::attention::bench {
namespace {

using platform::cpu::Team;

const Loops& loops_in_use() {
  switch (platform::cpu::isa()) {
    case platform::cpu::Isa::portable:
      return loops_portable();
    case platform::cpu::Isa::avx2:
      return loops_avx2();
    default:
      return loops_avx512();
  }
}

// The largest cache of the first processor, as the kernel tells it; the C library multiplies what an AMD
// guest sees by sockets that are not there.
std::int64_t last_level_cache_bytes() {
  std::int64_t largest = 8 << 20;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    std::int64_t size = 0;
    char unit = 0;
    if (file >> size >> unit) largest = std::max(largest, unit == 'M' ? size << 20 : size << 10);
  }
  return largest;
}

class CpuMeter final : public CeilingMeter {
 public:
  CpuMeter(platform::Device& device, platform::Stream& stream, const Options& options);
  Status prepare();
  double read() override;
  double copy() override;
  double matmul() override;
  void launches() override;
  Ceilings summary() const override;
  std::int64_t rotation_bytes() const override { return bytes_; }

 private:
  platform::Device& device_;
  platform::Stream& stream_;
  const Options options_;
  const Loops& loops_;
  std::int64_t cache_bytes_ = 0;
  std::int64_t bytes_ = 0;  // of the buffer that is read
  std::unique_ptr<platform::Arena> arena_;
  std::unique_ptr<platform::Buffer> panels_;
  std::vector<double> read_, copy_, matmul_, launch_, node_;
};

CpuMeter::CpuMeter(platform::Device& device, platform::Stream& stream, const Options& options)
    : device_(device), stream_(stream), options_(options), loops_(loops_in_use()) {
  cache_bytes_ = last_level_cache_bytes();
  const std::int64_t wanted = options.rotation_bytes > 0 ? options.rotation_bytes : 8 * cache_bytes_;
  bytes_ = (wanted + 2 * kBlock - 1) / (2 * kBlock) * (2 * kBlock);
}

Status CpuMeter::prepare() {
  QUIRE_TRY(arena, device_.reserve_arena(bytes_));
  QUIRE_TRY_STATUS(arena->back(bytes_));
  arena_ = std::move(arena);
  const std::int64_t threads = platform::cpu::as_cpu(stream_).threads();
  QUIRE_TRY(panels, device_.allocate(threads * kPanelFloats * std::int64_t{sizeof(float)}, "bench panels"));
  panels_ = std::move(panels);
  stream_.fill(arena_->base(), 1, bytes_);
  stream_.fill(panels_->data(), 0, panels_->bytes());
  stream_.synchronize();
  return {};
}

double CpuMeter::read() {
  const char* base = static_cast<const char*>(arena_->base());
  const double speed = rate(options_.round_seconds, [&] {
    std::atomic<std::uint64_t> seen{0};
    platform::cpu::as_cpu(stream_).enqueue([base, bytes = bytes_, loop = loops_.read, &seen](Team& team) {
      team.for_each(bytes / kBlock,
                    [&](std::int64_t index, int) { seen += loop(base + index * kBlock, kBlock); });
    });
    stream_.synchronize();
    return static_cast<double>(bytes_);
  });
  read_.push_back(speed);
  return speed;
}

double CpuMeter::copy() {
  char* base = static_cast<char*>(arena_->base());
  const std::int64_t half = bytes_ / 2;
  const double speed = rate(options_.round_seconds, [&] {
    platform::cpu::as_cpu(stream_).enqueue([base, half](Team& team) {
      team.for_each(half / kBlock, [&](std::int64_t index, int) {
        std::memcpy(base + half + index * kBlock, base + index * kBlock, kBlock);
      });
    });
    stream_.synchronize();
    return 2.0 * static_cast<double>(half);
  });
  copy_.push_back(speed);
  return speed;
}

double CpuMeter::matmul() {
  constexpr std::int64_t kRepeats = 2000;
  float* panels = panels_->as<float>();
  const double speed = rate(options_.round_seconds, [&] {
    std::atomic<double> flops{0};
    platform::cpu::as_cpu(stream_).enqueue([panels, loop = loops_.multiply, &flops](Team& team) {
      team.for_each(4 * team.threads(), [&](std::int64_t, int thread) {
        flops += loop(panels + std::int64_t{thread} * kPanelFloats, kRepeats);
      });
    });
    stream_.synchronize();
    return flops.load();
  });
  matmul_.push_back(speed);
  return speed;
}

void CpuMeter::launches() {
  constexpr int kCount = 200;
  std::vector<double> single;
  for (int i = 0; i < kCount; ++i) {
    const double start = steady_now();
    platform::cpu::as_cpu(stream_).enqueue([](Team&) {});
    stream_.synchronize();
    single.push_back((steady_now() - start) * 1e6);
  }
  launch_.push_back(median(single));
  stream_.begin_capture();
  for (int i = 0; i < kCount; ++i) platform::cpu::as_cpu(stream_).enqueue([](Team&) {});
  const std::unique_ptr<platform::Graph> graph = stream_.end_capture();
  const double start = steady_now();
  stream_.launch(*graph);
  stream_.synchronize();
  node_.push_back((steady_now() - start) * 1e6 / kCount);
}

Ceilings CpuMeter::summary() const {
  Ceilings c;
  c.read_bytes_s = median(read_);
  c.copy_bytes_s = median(copy_);
  c.matmul_flop_s = {{"f32", median(matmul_)}};
  c.launch_us = median(launch_);
  c.graph_node_us = median(node_);
  c.threads = platform::cpu::as_cpu(stream_).threads();
  c.cache_bytes = cache_bytes_;
  return c;
}

}  // namespace

Result<std::unique_ptr<CeilingMeter>> make_cpu_meter(platform::Device& device, platform::Stream& stream,
                                                     const Options& options) {
  auto meter = std::make_unique<CpuMeter>(device, stream, options);
  QUIRE_TRY_STATUS(meter->prepare());
  return std::unique_ptr<CeilingMeter>(std::move(meter));
}

Result<std::unique_ptr<CeilingMeter>> CeilingMeter::make(platform::Device& device, platform::Stream& stream,
                                                         const Options& options) {
  return device.info().kind == platform::Kind::cpu ? make_cpu_meter(device, stream, options)
                                                   : make_cuda_meter(device, stream, options);
}

Result<Ceilings> bench_device(platform::Device& device, const Options& options) {
  const std::unique_ptr<platform::Stream> stream = device.make_stream();
  QUIRE_TRY(meter, CeilingMeter::make(device, *stream, options));
  for (int i = 0; i < options.rounds; ++i) {
    meter->read();
    meter->copy();
    meter->matmul();
    meter->launches();
  }
  return meter->summary();
}

}  // namespace quire::attention::bench
