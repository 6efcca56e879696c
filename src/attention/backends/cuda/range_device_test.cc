// What the narrow form does for an e4m3 cache (products in f16, scales in exponents) must not be seen:
// queries and scales of any size give what the oracle gives.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/caps.h"

namespace quire::attention {
namespace {

constexpr std::int32_t kKeys = 333, kKvHeads = 2, kQHeads = 8, kDim = 128;

struct Inputs {
  float q_size = 1;
  float k_scale = 1.0f / 64;
  float v_spread = 0;  // scales of V: 2^-v_spread .. 2^v_spread, token by token
};

class Computed {
 public:
  Computed(const char* row, const Inputs& in)
      : device_(std::move(platform::open_device("cuda", {}).value())), stream_(device_->make_stream()) {
    fill(in);
    const Backend* backend = find_backend(backends(platform::Kind::cuda), row);
    const auto attention = backend->make(problem_, *device_);
    PlanBuffer plan;
    plan.bytes = attention->workspace_bytes({.max_batch = 1, .max_total_q = 1, .max_q = 1, .max_kv = kKeys});
    plan.data = upload(std::vector<char>(static_cast<std::size_t>(plan.bytes + 64)));
    attention->plan(shape_, plan, *stream_);
    attention->run(shape_, args_, plan, *stream_);
    out.resize(kQHeads * kDim);
    stream_->copy(out.data(), args_.out, static_cast<std::int64_t>(out.size() * 2));
    stream_->synchronize();
  }
  std::vector<std::uint16_t> out;

 private:
  template <class T>
  T* upload(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    buffers_.push_back(std::move(device_->allocate(bytes, "test").value()));
    stream_->copy(buffers_.back()->data(), values.data(), bytes);
    stream_->synchronize();
    return static_cast<T*>(buffers_.back()->data());
  }

  void fill(const Inputs& in) {
    problem_.platform = platform::Kind::cuda;
    problem_.arch = device_->info().arch;
    problem_.q_heads = kQHeads;
    problem_.kv_heads = kKvHeads;
    problem_.qk_dim = problem_.v_dim = kDim;
    problem_.q_type = DType::bf16;
    problem_.kv = {.k_type = DType::fp8_e4m3, .v_type = DType::fp8_e4m3, .scale = KvScaleKind::token_head};
    problem_.source = KvSource::dense;
    std::mt19937 rng(9);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> exponent(-in.v_spread, in.v_spread);
    std::vector<std::uint16_t> q(kQHeads * kDim);
    for (auto& x : q) x = f32_to_bf16(normal(rng) * in.q_size);
    std::vector<std::uint8_t> k(kKeys * kKvHeads * kDim), v(k.size());
    for (auto& x : k) x = f32_to_fp8_e4m3(normal(rng) * 64);
    for (auto& x : v) x = f32_to_fp8_e4m3(normal(rng) * 64);
    std::vector<float> k_scale(kKeys * kKvHeads, in.k_scale), v_scale(k_scale.size());
    for (float& x : v_scale) x = std::exp2(exponent(rng)) / 64;
    v_scale[5 * kKvHeads] = 0;
    args_.q = upload(q);
    args_.q_row_stride = kQHeads * kDim;
    args_.q_head_stride = kDim;
    args_.out = upload(q);
    args_.out_row_stride = kQHeads * kDim;
    args_.out_head_stride = kDim;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    args_.kv.k = upload(k);
    args_.kv.v = upload(v);
    args_.kv.k_scale = upload(k_scale);
    args_.kv.v_scale = upload(v_scale);
    args_.kv.format = problem_.kv;
    args_.kv.page_size = 1;
    args_.kv.k_stride = args_.kv.v_stride = {.page = 0, .head = kDim, .token = kKvHeads * kDim, .dim = 1};
    args_.kv.scale_stride = {.page = 0, .head = 4, .token = 4 * kKvHeads, .dim = 0};
    shape_.batch = shape_.total_q = shape_.max_q = 1;
    shape_.max_kv = kKeys;
    shape_.q_offsets = upload(std::vector<std::int32_t>{0, 1});
    shape_.kv_lens = upload(std::vector<std::int32_t>{kKeys});
    shape_.kv_offsets = upload(std::vector<std::int64_t>{0});
  }

  std::unique_ptr<platform::Device> device_;
  std::unique_ptr<platform::Stream> stream_;
  std::vector<std::unique_ptr<platform::Buffer>> buffers_;
  Problem problem_;
  StepShape shape_;
  Args args_;
};

// Relative Frobenius error against the oracle.
double error_of(const Inputs& in) {
  const Computed ours("cuda", in), oracle("reference", in);
  double wrong = 0, size = 0;
  for (std::size_t i = 0; i < ours.out.size(); ++i) {
    const double x = bf16_to_f32(ours.out[i]), y = bf16_to_f32(oracle.out[i]);
    wrong += (x - y) * (x - y);
    size += y * y;
  }
  EXPECT_GT(size, 0);
  return std::sqrt(wrong / size);
}

TEST(CudaRange, QueriesOfAnySize) {
  const Computed plain("cuda", {});
  for (const int power : {-110, -40, -8, 8, 40, 110}) {
    const Inputs in{.q_size = std::exp2(static_cast<float>(power)),
                    .k_scale = std::exp2(static_cast<float>(-power)) / 64};
    EXPECT_EQ(Computed("cuda", in).out, plain.out) << power;  // powers of two change nothing
  }
  EXPECT_LE(error_of({}), 4e-3);
}

TEST(CudaRange, ScalesOfVOfAnySize) {
  for (const float spread : {0.0f, 4.0f, 20.0f, 40.0f})
    EXPECT_LE(error_of({.v_spread = spread}), 4e-3) << spread;
}

}  // namespace
}  // namespace quire::attention
