// Activations rounded per row, and products of those in e4m3 with fp8 weights: against sums in double over
// the same rounded operands. Where cuBLASLt has no such product x stays as it is; which of the two it was is
// told by the distance to both.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ops/cuda/round_rows.h"
#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::Host;
using testing::poisoned;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;
using testing::unit_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

float scale_of(const float* row, std::int64_t cols) {
  float largest = 0.0f;
  for (std::int64_t c = 0; c < cols; ++c) {
    if (!std::isfinite(row[c])) return kNan;
    largest = std::max(largest, std::fabs(row[c]));
  }
  return std::max(largest / kFp8E4m3Max, 0x1p-126f);
}

// x as the product sees it.
std::vector<float> rounded_rows(const Host& x) {
  std::vector<float> values = x.values;
  for (std::int64_t r = 0; r < x.view.rows(); ++r) {
    float* row = values.data() + r * x.view.stride[0];
    const float scale = scale_of(row, x.view.cols());
    for (std::int64_t c = 0; c < x.view.cols(); ++c)
      row[c] = fp8_e4m3_to_f32(f32_to_fp8_e4m3(row[c] * (1.0f / scale))) * scale;
  }
  return values;
}

// Rows of many kinds, values in `type`, with a gap behind each.
Host rows_of_all_kinds(std::int64_t cols, DType type, unsigned seed) {
  Host x = random_rows(9, cols, cols + 8, type, seed, 3.0f);
  const auto row = [&](std::int64_t r) { return x.values.data() + r * (cols + 8); };
  std::fill_n(row(1), cols, 0.0f);
  for (std::int64_t c = 0; c < cols; ++c) row(2)[c] = testing::rounded(type, row(2)[c] * 1e-36f);
  row(3)[cols - 1] = testing::rounded(type, 30000.0f);  // an outlier
  row(4)[cols / 2] = kNan;
  row(5)[7] = -kInf;
  if (type != DType::f16) row(6)[3] = testing::rounded(type, 3e38f);
  return x;
}

TEST(RoundRowsDevice, EveryTypeWidthAndKindOfRow) {
  Rig rig;
  unsigned seed = 1;
  for (const DType type : {DType::bf16, DType::f32, DType::f16}) {
    for (const std::int64_t cols : {16, 576, 2048, 4096, 14336, 16384, 20000}) {
      const std::int64_t rows = 9;
      const Host x = rows_of_all_kinds(cols, type, seed++);
      const TensorView dx = rig.mirror(x, type);
      auto* device = rig.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols), 0x55));
      const RoundedRows to{device, rig.upload(std::vector<float>(rows, -1.0f))};
      round_rows(dx, to, *rig.stream);
      const auto values = rig.download(device, static_cast<std::size_t>(rows * cols));
      const auto scales = rig.download(to.scales, rows);
      std::int64_t wrong = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* row = x.values.data() + r * (cols + 8);
        const float scale = scale_of(row, cols);
        if (std::isnan(scale)) {
          EXPECT_TRUE(std::isnan(scales[static_cast<std::size_t>(r)])) << r << " of " << cols;
          continue;
        }
        EXPECT_EQ(scales[static_cast<std::size_t>(r)], scale) << r << " of " << cols;
        for (std::int64_t c = 0; c < cols; ++c)
          wrong += values[static_cast<std::size_t>(r * cols + c)] != f32_to_fp8_e4m3(row[c] * (1.0f / scale));
      }
      EXPECT_EQ(wrong, 0) << to_string(type) << " " << cols;
      rig.kept.clear();
    }
  }
}

// In f16 nothing is lost but far below the largest, and what is not finite stays where it is.
TEST(RoundRowsDevice, F16KeepsEveryRowsBits) {
  Rig rig;
  unsigned seed = 1;
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::int64_t cols : {16, 576, 4096, 14336, 20000}) {
      const std::int64_t rows = 9;
      const Host x = rows_of_all_kinds(cols, type, seed++);
      const TensorView dx = rig.mirror(x, type);
      auto* device = rig.upload(std::vector<std::uint16_t>(static_cast<std::size_t>(rows * cols), 0x5555));
      const RoundedRows to{device, rig.upload(std::vector<float>(rows, -1.0f)), DType::f16};
      round_rows(dx, to, *rig.stream);
      const auto values = rig.download(device, static_cast<std::size_t>(rows * cols));
      const auto scales = rig.download(to.scales, rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* row = x.values.data() + r * (cols + 8);
        const float scale = scales[static_cast<std::size_t>(r)];
        int exponent = 0;
        EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << "no power of two: " << scale;
        float largest = 0.0f;
        for (std::int64_t c = 0; c < cols; ++c)
          if (std::isfinite(row[c])) largest = std::max(largest, std::fabs(row[c]));
        std::int64_t wrong = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          const float got = f16_to_f32(values[static_cast<std::size_t>(r * cols + c)]) * scale;
          if (!std::isfinite(row[c]))
            wrong += std::isnan(row[c]) ? !std::isnan(got) : got != row[c];
          else if (r != 4 && r != 5)  // beside what is not finite the others count for nothing
            wrong += std::fabs(got - row[c]) > largest * 0x1p-38f;
        }
        EXPECT_EQ(wrong, 0) << to_string(type) << " " << cols << " row " << r;
      }
      rig.kept.clear();
    }
  }
}

struct Fp8Weight {
  std::vector<float> values;  // scales included
  std::vector<float> scale;
  WeightView view;

  // As large as the products with rows of size 1.
  std::vector<float> bias(unsigned seed) const {
    std::vector<float> bias = random_floats(view.rows, seed);
    for (std::size_t o = 0; o < bias.size(); ++o)
      bias[o] *= 60.0f * scale[o] * std::sqrt(static_cast<float>(view.cols));
    return bias;
  }
};

// Rows whose scales differ by up to a million.
Fp8Weight fp8_weight(Rig& rig, std::int64_t rows, std::int64_t cols, unsigned seed) {
  Fp8Weight w;
  w.scale = random_floats(rows, seed + 1);
  for (float& s : w.scale) s = std::pow(10.0f, std::clamp(s, -1.5f, 1.5f) * 2.0f - 3.0f);
  std::vector<std::uint8_t> bits;
  for (const float value : random_floats(rows * cols, seed)) {
    bits.push_back(f32_to_fp8_e4m3(value * 60.0f));
    w.values.push_back(fp8_e4m3_to_f32(bits.back()) *
                       w.scale[w.values.size() / static_cast<std::size_t>(cols)]);
  }
  w.view = {rig.upload(bits), WeightFormat::fp8_e4m3, rows, cols, cols, 1, 0, rig.upload(w.scale)};
  return w;
}

// How far y [rows, outs] is from the products of x as given, and of x rounded.
struct Distances {
  double exact = 0.0, rounded = 0.0;  // root mean square, each output in units of its row's size
  std::int64_t outside = 0;           // elements beyond the bound of both
};

Distances distances(const std::vector<float>& y, std::int64_t y_stride, const Host& x, const Fp8Weight& w,
                    const float* bias, DType y_type) {
  const std::int64_t rows = x.view.rows(), cols = w.view.cols, outs = w.view.rows, stride = x.view.stride[0];
  const std::vector<float> as_seen = rounded_rows(x);
  Distances d;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < outs; ++o) {
      const float* weight = w.values.data() + o * cols;
      double exact = 0.0, rounded = 0.0, magnitude = 0.0, squares = 0.0;
      for (std::int64_t c = 0; c < cols; ++c) {
        const double term = double{x.values[static_cast<std::size_t>(r * stride + c)]} * weight[c];
        exact += term;
        magnitude += std::fabs(term);
        squares += term * term;
        rounded += double{as_seen[static_cast<std::size_t>(r * stride + c)]} * weight[c];
      }
      const double more = bias ? bias[o] : 0.0;
      const double got = y[static_cast<std::size_t>(r * y_stride + o)];
      // The output's rounding (a bias may be rounded, or added to a rounded sum) and float32 sums of parts of
      // which the tensor cores keep 13 bits; widened weights are rounded to bf16.
      const double last = 0.51 * unit_of(y_type) * (std::fabs(rounded) + 2.0 * std::fabs(more)) + 1e-9;
      const double from_exact = std::fabs(got - exact - more), from_rounded = std::fabs(got - rounded - more);
      d.outside += from_exact > last + 0x1p-8 * magnitude && from_rounded > last + 0x1p-12 * magnitude;
      if (std::isnan(got)) ++d.outside;
      const double size = std::sqrt(squares) + 1e-30;
      d.exact += from_exact / size * (from_exact / size);
      d.rounded += from_rounded / size * (from_rounded / size);
    }
  }
  const auto count = static_cast<double>(rows * outs);
  d.exact = std::sqrt(d.exact / count);
  d.rounded = std::sqrt(d.rounded / count);
  return d;
}

Linear call(const TensorView& x, const WeightView& w, const float* bias, const TensorView& y) {
  Linear linear;
  linear.x = x;
  linear.targets[0] = {w, bias, y};
  linear.target_count = 1;
  linear.x_rounding = RowRounding::e4m3;
  return linear;
}

TEST(RoundedProductDevice, EqualsTheSumsOfTheRoundedOperands) {
  Rig rig;
  unsigned seed = 1;
  std::printf("  %-26s %10s %10s  x was\n", "rows x in -> out", "exact", "rounded");
  for (const auto& [cols, outs] : {std::pair{64, 48}, {576, 1024}, {2880, 130}, {4096, 256}, {136, 96}}) {
    const Fp8Weight w = fp8_weight(rig, outs, cols, seed++);
    const std::vector<float> bias = w.bias(seed++);
    const float* device_bias = rig.upload(bias);
    for (const std::int64_t rows : {17, 64, 200}) {
      for (const DType y_type : {DType::bf16, DType::f32}) {
        const bool with_bias = rows == 64;
        const Host x = random_rows(rows, cols, cols + 8, DType::bf16, seed++);
        Host y = poisoned(rows, outs, outs + 8);
        const TensorView dx = rig.mirror(x, rows == 200 ? DType::f32 : DType::bf16),
                         dy = rig.mirror(y, y_type);
        rig.ops->linear(call(dx, w.view, with_bias ? device_bias : nullptr, dy), *rig.stream);
        const std::vector<float> got = rig.read(dy, y.values.size());
        const Distances d = distances(got, outs + 8, x, w, with_bias ? bias.data() : nullptr, y_type);
        const bool was_rounded = d.rounded < 0.25 * d.exact;
        const std::string what = std::to_string(rows) + " x " + std::to_string(cols) + " -> " +
                                 std::to_string(outs) + " " + std::string(to_string(y_type)) +
                                 (with_bias ? " bias" : "");
        std::printf("  %-26s %10.2e %10.2e  %s\n", what.c_str(), d.exact, d.rounded,
                    was_rounded ? "rounded" : "as given");
        EXPECT_EQ(d.outside, 0) << what;
        EXPECT_TRUE(was_rounded || d.exact < 0.25 * d.rounded) << what;
        // cuBLASLt has the product for whole groups of 16 bytes on sm_90, at least into bf16.
        const bool whole = cols % 16 == 0 && outs % 16 == 0 && y_type == DType::bf16;
        EXPECT_TRUE(was_rounded || rig.device->info().arch != 90 || !whole) << what;
        for (std::int64_t r = 0; r < rows; ++r)
          EXPECT_TRUE(std::isnan(got[static_cast<std::size_t>(r * (outs + 8) + outs)])) << what;
      }
    }
    rig.kept.clear();
  }
}

// Weights, scales and biases that lie side by side, as q, k and v do: bits of one product of all.
TEST(RoundedProductDevice, TargetsSideBySideAreOneProduct) {
  Rig rig;
  const std::int64_t rows = 40, cols = 512, outs[3] = {128, 48, 64}, all = 240;
  const Fp8Weight w = fp8_weight(rig, all, cols, 3);
  const std::vector<float> bias = w.bias(4);
  const float* device_bias = rig.upload(bias);
  const Host x = random_rows(rows, cols, cols, DType::bf16, 5);
  const Host y = poisoned(rows, all, all);
  const TensorView dx = rig.mirror(x, DType::bf16), whole = rig.mirror(y, DType::bf16),
                   parts = rig.mirror(y, DType::bf16), apart = rig.mirror(y, DType::bf16);
  for (const float* b : {static_cast<const float*>(nullptr), device_bias}) {
    rig.ops->linear(call(dx, w.view, b, whole), *rig.stream);
    Linear linear = call(dx, w.view, b, parts);
    linear.target_count = 3;
    std::int64_t first = 0;
    for (int t = 0; t < 3; ++t) {
      WeightView part = w.view;
      part.data = static_cast<const char*>(part.data) + first * part.row_bytes;
      part.rows = outs[t];
      part.row_scale += first;
      linear.targets[t] = {part, b ? b + first : nullptr, parts.cols_slice(first, outs[t])};
      rig.ops->linear(call(dx, part, linear.targets[t].bias, apart.cols_slice(first, outs[t])), *rig.stream);
      first += outs[t];
    }
    rig.ops->linear(linear, *rig.stream);
    const auto want = rig.read(whole, y.values.size());
    EXPECT_EQ(rig.read(parts, y.values.size()), want);
    for (const auto& got : {want, rig.read(apart, y.values.size())})
      EXPECT_EQ(distances(got, all, x, w, b ? bias.data() : nullptr, DType::bf16).outside, 0);
  }
}

TEST(RoundedProductDevice, NothingIsHiddenAndRowsStandAlone) {
  Rig rig;
  const std::int64_t rows = 33, cols = 256, outs = 64;
  const Fp8Weight w = fp8_weight(rig, outs, cols, 3);
  Host x = random_rows(rows, cols, cols, DType::bf16, 5), y = poisoned(rows, outs, outs);
  const auto run = [&](const Host& in) {
    const TensorView dx = rig.mirror(in, DType::bf16), dy = rig.mirror(y, DType::bf16);
    rig.ops->linear(call(dx, w.view, nullptr, dy), *rig.stream);
    return rig.read(dy, y.values.size());
  };
  const std::vector<float> plain = run(x);
  x.values[3 * cols + 9] = kNan;
  x.values[8 * cols] = kInf;
  std::fill_n(x.values.begin() + 20 * cols, cols, 0.0f);
  const std::vector<float> got = run(x);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < outs; ++o) {
      const float value = got[static_cast<std::size_t>(r * outs + o)];
      if (r == 3 || r == 8)
        EXPECT_FALSE(std::isfinite(value)) << r;
      else if (r == 20)
        EXPECT_EQ(value, 0.0f);
      else
        EXPECT_EQ(value, plain[static_cast<std::size_t>(r * outs + o)]) << r;
    }
  }
}

TEST(RoundedProductDevice, CapturedCallsGiveTheSameBits) {
  Rig rig;
  const Fp8Weight w = fp8_weight(rig, 128, 512, 3);
  const Host x = random_rows(64, 512, 512, DType::bf16, 5), y = poisoned(64, 128, 128);
  const TensorView dx = rig.mirror(x, DType::bf16), eager = rig.mirror(y, DType::bf16),
                   replayed = rig.mirror(y, DType::bf16);
  rig.ops->linear(call(dx, w.view, nullptr, eager), *rig.stream);
  rig.stream->begin_capture();
  rig.ops->linear(call(dx, w.view, nullptr, replayed), *rig.stream);
  const std::unique_ptr<platform::Graph> graph = rig.stream->end_capture();
  rig.stream->launch(*graph);
  EXPECT_EQ(rig.read(replayed, y.values.size()), rig.read(eager, y.values.size()));
}

TEST(RoundedProductDevice, FewRowsAreNotRounded) {
  Rig rig;
  // By the kernels for few rows, and 96 columns, which these do not take.
  for (const auto& [rows, cols] : {std::pair{1, 512}, {8, 512}, {16, 512}, {12, 14336}, {16, 96}}) {
    const Fp8Weight w = fp8_weight(rig, 96, cols, 3);
    const Host x = random_rows(rows, cols, cols, DType::bf16, 5), y = poisoned(rows, 96, 96);
    const TensorView dx = rig.mirror(x, DType::bf16), a = rig.mirror(y, DType::f32),
                     b = rig.mirror(y, DType::f32);
    Linear linear = call(dx, w.view, nullptr, a);
    rig.ops->linear(linear, *rig.stream);
    linear.x_rounding = RowRounding::none;
    linear.targets[0].y = b;
    rig.ops->linear(linear, *rig.stream);
    EXPECT_EQ(rig.read(a, y.values.size()), rig.read(b, y.values.size())) << rows;
  }
}

}  // namespace
}  // namespace quire::ops::cuda
