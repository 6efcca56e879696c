// What the tests of this folder share: a stream with ops and workspace, random rows and weights.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "platform/entry.h"
#include "tensor/dtype.h"
#include "tensor/weight.h"

namespace quire::ops::cpu::testing {

using platform::cpu::Isa;

inline std::vector<Isa> levels() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa <= platform::cpu::best_isa()) all.push_back(isa);
  }
  return all;
}

// One stream of `threads` threads with ops of one level.
struct Rig {
  explicit Rig(Isa isa, int threads = 2, std::int64_t vocab = 1024) {
    device = std::move(platform::cpu::open(platform::ThreadPlan{threads}).value());
    stream = device->make_stream();
    ops = make_cpu_ops(isa);
    OpsLimits limits;
    limits.max_rows = 160;
    limits.max_cols = 4096;
    limits.max_expert_inter = 512;
    limits.max_top_k = 4;
    limits.max_hidden = 512;
    limits.max_logit_rows = 64;
    limits.vocab = vocab;
    limits.threads = threads;
    const std::int64_t bytes = ops->workspace_bytes(limits);
    workspace = std::move(device->allocate(bytes, "workspace").value());
    ops->set_workspace(workspace->data(), bytes, limits);
  }
  std::unique_ptr<platform::Device> device;
  std::unique_ptr<platform::Stream> stream;
  std::unique_ptr<platform::Buffer> workspace;
  std::unique_ptr<Ops> ops;
};

inline std::vector<float> random_floats(std::int64_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

inline TensorView view(std::vector<float>& data, std::int64_t rows, std::int64_t cols,
                       std::int64_t stride = 0) {
  return TensorView::matrix(data.data(), DType::f32, rows, cols, stride);
}

// A weight of random blocks: random bytes with sane 16-bit scales where the format has them, and for e4m3
// scales per row that differ by powers of ten.
struct TestWeight {
  std::vector<unsigned char> bytes;
  std::vector<float> row_scale;
  WeightView view;
};

inline std::vector<int> scale_offsets(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0:
    case WeightFormat::q4_0:
    case WeightFormat::q5_0:
    case WeightFormat::iq4_nl:
    case WeightFormat::iq4_xs:
      return {0};
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
      return {0, 2};
    case WeightFormat::q2_k:
      return {80, 82};
    case WeightFormat::q3_k:
      return {108};
    case WeightFormat::q6_k:
      return {208};
    default:
      return {};
  }
}

inline TestWeight random_weight(WeightFormat format, std::int64_t rows, std::int64_t cols, unsigned seed,
                                std::int64_t experts = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  TestWeight w;
  const std::int64_t row_bytes = weight_row_bytes(format, cols);
  const std::int64_t total = row_bytes * rows * experts;
  w.bytes.resize(static_cast<std::size_t>(total));
  const WeightFormatInfo& info = weight_format_info(format);
  for (std::int64_t at = 0; at < total; at += info.block_bytes) {
    unsigned char* block = w.bytes.data() + at;
    for (std::int64_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<unsigned char>(random());
    const float value = uniform(random);
    const std::uint16_t f16 = f32_to_f16(value), bf16 = f32_to_bf16(value);
    if (format == WeightFormat::f32) std::memcpy(block, &value, 4);
    if (format == WeightFormat::f16) std::memcpy(block, &f16, 2);
    if (format == WeightFormat::bf16) std::memcpy(block, &bf16, 2);
    if (format == WeightFormat::fp8_e4m3) block[0] = f32_to_fp8_e4m3(value * 100.0f);
    if (format == WeightFormat::mxfp4) block[0] = static_cast<unsigned char>(120 + random() % 6);
    for (int offset : scale_offsets(format)) {
      const std::uint16_t scale = f32_to_f16(uniform(random) * 0.05f);
      std::memcpy(block + offset, &scale, 2);
    }
  }
  for (std::int64_t row = 0; format == WeightFormat::fp8_e4m3 && row < rows * experts; ++row)
    w.row_scale.push_back(std::pow(10.0f, -2.0f + 2.0f * uniform(random)));
  w.view = WeightView{w.bytes.data(),
                      format,
                      rows,
                      cols,
                      row_bytes,
                      experts,
                      experts > 1 ? rows * row_bytes : 0,
                      w.row_scale.empty() ? nullptr : w.row_scale.data()};
  return w;
}

// The weight's values as ggml dequantises them, e4m3 times their scales.
inline std::vector<float> dequantised(const ProductTable& products, const WeightView& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.cols));
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    products.find(weight.format)
        ->dequantise(static_cast<const char*>(weight.data) + r * weight.row_bytes,
                     values.data() + r * weight.cols, weight.cols);
    for (std::int64_t c = 0; weight.row_scale && c < weight.cols; ++c)
      values[static_cast<std::size_t>(r * weight.cols + c)] *= weight.row_scale[r];
  }
  return values;
}

}  // namespace quire::ops::cpu::testing
