// Products against sums in double: every format, few rows and many, one target and several.
#include <algorithm>

#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::Host;
using testing::poisoned;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;
using testing::unit_of;

struct Weight {
  std::vector<float> values;  // as the device multiplies them, scale included
  WeightView view;            // device
};

Weight make_weight(Rig& rig, WeightFormat format, std::int64_t rows, std::int64_t cols, unsigned seed,
                   std::int64_t experts = 1) {
  Weight w;
  w.values = random_floats(rows * cols * experts, seed, 0.05f);
  w.view.format = format;
  w.view.rows = rows;
  w.view.cols = cols;
  w.view.row_bytes = weight_row_bytes(format, cols);
  w.view.experts = experts;
  w.view.expert_bytes = experts > 1 ? rows * w.view.row_bytes : 0;
  if (format == WeightFormat::f32) {
    w.view.data = rig.upload(w.values);
  } else if (format == WeightFormat::fp8_e4m3) {
    std::vector<std::uint8_t> bits;
    const std::vector<float> scale = random_floats(rows * experts, seed + 1);
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      bits.push_back(f32_to_fp8_e4m3(w.values[i] * 40.0f));
      w.values[i] = fp8_e4m3_to_f32(bits.back()) * scale[i / static_cast<std::size_t>(cols)];
    }
    w.view.data = rig.upload(bits);
    w.view.row_scale = rig.upload(scale);
  } else {
    std::vector<std::uint16_t> bits;
    for (float& x : w.values) {
      bits.push_back(format == WeightFormat::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
      x = format == WeightFormat::bf16 ? bf16_to_f32(bits.back()) : f16_to_f32(bits.back());
    }
    w.view.data = rig.upload(bits);
  }
  return w;
}

// Checks y [rows, outs] against x w^T + b, element by element, with a bound from the sum of magnitudes.
void expect_product(const std::vector<float>& y, std::int64_t y_stride, const Host& x, const Weight& w,
                    const float* bias, DType y_type, const char* what) {
  const std::int64_t rows = x.view.rows(), cols = w.view.cols, outs = w.view.rows;
  int shown = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < y_stride && shown < 3; ++o) {
      const float got = y[static_cast<std::size_t>(r * y_stride + o)];
      if (o >= outs) {
        if (!std::isnan(got)) ++shown, ADD_FAILURE() << what << ": written beside row " << r << " at " << o;
        continue;
      }
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t c = 0; c < cols; ++c) {
        const double term = double{x.values[static_cast<std::size_t>(r * x.view.stride[0] + c)]} *
                            w.values[static_cast<std::size_t>(o * cols + c)];
        sum += term;
        magnitude += std::fabs(term);
      }
      // With many rows the bias may be rounded to the output's type, or the sum before the bias is added.
      double rounded_twice = 0.0;
      if (bias) {
        if (rows > 16) rounded_twice = std::fabs(sum) + std::fabs(bias[o]);
        sum += bias[o];
      }
      // There, and where the columns are no multiple of 64 (the kernel for few rows takes no others), fp8
      // weights times their scales are rounded to bf16.
      const bool widened = w.view.format == WeightFormat::fp8_e4m3 && (rows > 16 || cols % 64 != 0);
      const double bound = 0.51 * unit_of(y_type) * (std::fabs(sum) + rounded_twice) +
                           (widened ? 0x1p-8 : 2e-6) * magnitude + 1e-7;
      if (std::fabs(got - sum) <= bound) continue;
      ++shown;
      ADD_FAILURE() << what << ": row " << r << " of " << rows << " output " << o << " got " << got
                    << " want " << sum << " +- " << bound;
    }
  }
}

std::string describe(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int64_t outs) {
  return std::string(weight_format_info(format).name) + " " + std::to_string(rows) + " x " +
         std::to_string(cols) + " -> " + std::to_string(outs);
}

TEST(LinearDevice, FewAndManyRowsOfEveryFormat) {
  Rig rig;
  unsigned seed = 1;
  for (WeightFormat format :
       {WeightFormat::bf16, WeightFormat::f16, WeightFormat::fp8_e4m3, WeightFormat::f32}) {
    for (const auto& [cols, outs] :
         {std::pair{64, 40}, {576, 130}, {1056, 48}, {2880, 16}, {100, 24}, {4096, 200}}) {
      const Weight w = make_weight(rig, format, outs, cols, seed++);
      const std::vector<float> bias = random_floats(outs, seed++);
      const float* device_bias = rig.upload(bias);
      for (std::int64_t rows : {1, 2, 5, 8, 9, 16, 17, 33, 70}) {
        const bool f32 = rows % 2 == 1 && format != WeightFormat::f16;  // mixed types of x and y
        const DType x_type = f32 ? DType::f32 : DType::bf16,
                    y_type = rows % 3 == 0 ? DType::f32 : DType::bf16;
        const Host x = random_rows(rows, cols, cols + 8, DType::bf16, seed++);
        Host y = poisoned(rows, outs, outs + 8);
        const TensorView dx = rig.mirror(x, x_type), dy = rig.mirror(y, y_type);
        Linear linear;
        linear.x = dx;
        linear.targets[0] = {w.view, rows == 5 ? nullptr : device_bias, dy};
        linear.target_count = 1;
        rig.ops->linear(linear, *rig.stream);
        expect_product(rig.read(dy, y.values.size()), outs + 8, x, w, rows == 5 ? nullptr : bias.data(),
                       y_type, describe(format, rows, cols, outs).c_str());
      }
      rig.kept.clear();
    }
  }
}

// Long rows, and more tiles than multiprocessors: both kernels for few rows begin again with the next tile,
// and what neither takes goes on to cuBLASLt.
TEST(LinearDevice, LongRowsAndManyTiles) {
  Rig rig;
  unsigned seed = 1;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f16, WeightFormat::fp8_e4m3}) {
    for (const auto& [cols, outs] :
         {std::pair{8256, 40}, {9216, 70}, {16448, 40}, {4096, 6000}, {14336, 4600}}) {
      const Weight w = make_weight(rig, format, outs, cols, seed++);
      const std::vector<float> bias = random_floats(outs, seed++);
      const float* device_bias = rig.upload(bias);
      for (const std::int64_t rows : {1, 3, 5, 8, 9, 16}) {
        if (outs > 100 && rows != 1 && rows != 5 && rows != 9)
          continue;  // the sums in double take their time
        const Host x = random_rows(rows, cols, cols + 8, DType::bf16, seed++);
        const Host y = poisoned(rows, outs, outs + 8);
        const TensorView dx = rig.mirror(x, DType::bf16), dy = rig.mirror(y, DType::f32);
        Linear linear;
        linear.x = dx;
        linear.targets[0] = {w.view, device_bias, dy};
        linear.target_count = 1;
        rig.ops->linear(linear, *rig.stream);
        expect_product(rig.read(dy, y.values.size()), outs + 8, x, w, bias.data(), DType::f32,
                       describe(format, rows, cols, outs).c_str());
      }
      rig.kept.clear();
    }
  }
}

// y against x w^T where rows are of any size and row 4 holds NaN.
void expect_products_of_any_size(const std::vector<float>& y, const Host& x, const Weight& w,
                                 std::int64_t at_once) {
  const std::int64_t rows = x.view.rows(), cols = w.view.cols, outs = w.view.rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < outs; ++o) {
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t c = 0; c < cols; ++c) {
        const double term = double{x.values[static_cast<std::size_t>(r * cols + c)]} *
                            w.values[static_cast<std::size_t>(o * cols + c)];
        sum += term;
        magnitude += std::fabs(term);
      }
      const float got = y[static_cast<std::size_t>(r * outs + o)];
      if (r == 4)
        EXPECT_TRUE(std::isnan(got)) << o;
      else  // a sum of 112 parts, each cut off below the last place of the largest so far
        EXPECT_LE(std::fabs(got - sum), 0x1p-16 * magnitude)
            << rows << " x " << cols << " row " << r << ", " << at_once << " at once";
    }
  }
}

// Activations of any size by e4m3 weights: each row has the precision of its own largest value.
TEST(LinearDevice, FewRowsOfAnySizeByFp8) {
  Rig rig;
  unsigned seed = 1;
  for (const std::int64_t cols : {64, 4096, 14336}) {
    const std::int64_t outs = 24;
    const Weight w = make_weight(rig, WeightFormat::fp8_e4m3, outs, cols, seed++);
    const std::size_t kept = rig.kept.size();
    for (const std::int64_t rows : {6, 14}) {
      Host x = random_rows(rows, cols, cols, DType::bf16, seed++), y = poisoned(rows, outs, outs);
      const auto multiply_row = [&](std::int64_t r, float by) {
        for (std::int64_t c = 0; c < cols; ++c) {
          float& value = x.values[static_cast<std::size_t>(r * cols + c)];
          value = testing::rounded(DType::bf16, value * by);
        }
      };
      multiply_row(0, 1e30f);
      multiply_row(1, 1e-30f);
      multiply_row(2, 0.0f);
      x.values[static_cast<std::size_t>(3 * cols + 5)] = testing::rounded(DType::bf16, 1e6f);
      x.values[static_cast<std::size_t>(4 * cols + 9)] = std::numeric_limits<float>::quiet_NaN();
      const TensorView dx = rig.mirror(x, DType::bf16);
      // All at once; and one and two at a time, which the ring's kernel converts itself.
      for (const std::int64_t at_once : {rows, std::int64_t{2}, std::int64_t{1}}) {
        const TensorView dy = rig.mirror(y, DType::f32);
        for (std::int64_t first = 0; first < rows; first += at_once) {
          Linear linear;
          linear.x = dx.rows_slice(first, std::min(at_once, rows - first));
          linear.targets[0] = {w.view, nullptr, dy.rows_slice(first, linear.x.rows())};
          linear.target_count = 1;
          rig.ops->linear(linear, *rig.stream);
        }
        expect_products_of_any_size(rig.read(dy, y.values.size()), x, w, at_once);
      }
      rig.kept.resize(kept);
    }
    rig.kept.clear();
  }
}

TEST(LinearDevice, SeveralTargetsShareTheLaunchOrTheProduct) {
  Rig rig;
  for (const auto& [format, rows] : {std::pair{WeightFormat::bf16, std::int64_t{1}},
                                     {WeightFormat::bf16, 7},
                                     {WeightFormat::bf16, 16},
                                     {WeightFormat::bf16, 40},
                                     {WeightFormat::fp8_e4m3, 1},
                                     {WeightFormat::fp8_e4m3, 7},
                                     {WeightFormat::fp8_e4m3, 16}}) {
    const std::int64_t cols = 512, outs[3] = {136, 40, 56};
    // One stack of weights and one of outputs, as q, k and v may lie; and the same targets apart.
    for (bool stacked : {false, true}) {
      const Host x = random_rows(rows, cols, cols, DType::bf16, 5);
      const Weight all = make_weight(rig, format, 232, cols, 9);
      Host y = poisoned(rows, 232, 240);
      Host apart[3] = {poisoned(rows, 136, 144), poisoned(rows, 40, 40), poisoned(rows, 56, 64)};
      const TensorView dx = rig.mirror(x, DType::bf16), dy = rig.mirror(y, DType::bf16);
      TensorView dapart[3];
      Linear linear;
      linear.x = dx;
      linear.target_count = 3;
      std::int64_t first = 0;
      for (int t = 0; t < 3; ++t) {
        dapart[t] = rig.mirror(apart[t], DType::f32);
        WeightView part = all.view;
        part.data = static_cast<const char*>(part.data) + first * part.row_bytes;
        part.rows = outs[t];
        if (part.row_scale) part.row_scale += first;
        linear.targets[t] = {part, nullptr, stacked ? dy.cols_slice(first, outs[t]) : dapart[t]};
        first += outs[t];
      }
      rig.ops->linear(linear, *rig.stream);
      if (stacked) {
        expect_product(rig.read(dy, y.values.size()), 240, x, all, nullptr, DType::bf16, "stacked");
        continue;
      }
      first = 0;
      for (int t = 0; t < 3; ++t) {
        Weight part;
        part.view.rows = outs[t];
        part.view.cols = cols;
        part.values.assign(all.values.begin() + first * cols, all.values.begin() + (first + outs[t]) * cols);
        expect_product(rig.read(dapart[t], apart[t].values.size()), apart[t].view.stride[0], x, part, nullptr,
                       DType::f32, "apart");
        first += outs[t];
      }
    }
  }
}

// The ring's kernel promises that a row's bits depend on neither the other rows nor their number; also two
// equal calls are equal.
TEST(LinearDevice, RowsOfFewRowProductsDoNotDependOnEachOther) {
  Rig rig;
  const std::int64_t cols = 2880, outs = 333;
  for (WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_e4m3}) {
    const Weight w = make_weight(rig, format, outs, cols, 3);
    const Host x = random_rows(16, cols, cols, DType::bf16, 4);
    const TensorView dx = rig.mirror(x, DType::bf16);
    std::vector<float> whole;
    for (std::int64_t rows = 16; rows >= 1; --rows) {
      Host y = poisoned(rows, outs, outs);
      const TensorView dy = rig.mirror(y, DType::f32);
      Linear linear;
      linear.x = dx.rows_slice(16 - rows, rows);
      linear.targets[0] = {w.view, nullptr, dy};
      linear.target_count = 1;
      rig.ops->linear(linear, *rig.stream);
      const std::vector<float> got = rig.read(dy, y.values.size());
      if (rows == 16) whole = got;
      const std::size_t skip = static_cast<std::size_t>((16 - rows) * outs);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.begin() + static_cast<std::ptrdiff_t>(skip)))
          << rows;
    }
  }
}

TEST(HeadLinearDevice, OneMatrixPerHead) {
  Rig rig;
  for (DType type : {DType::bf16, DType::f32}) {
    for (std::int64_t rows : {1, 6, 40}) {
      const std::int64_t heads = 5, in = 64, out = 48;
      const Weight w = make_weight(rig, WeightFormat::bf16, out, in, 7, heads);
      const Host x = random_rows(rows, heads * (in + 16), heads * (in + 16), DType::bf16, 8);
      Host y = poisoned(rows, heads * (out + 8), heads * (out + 8));
      TensorView dx = rig.mirror(x, type).split_heads(heads), dy = rig.mirror(y, type).split_heads(heads);
      dx.shape[2] = in;
      dy.shape[2] = out;
      rig.ops->head_linear({dx, w.view, dy}, *rig.stream);
      const std::vector<float> got = rig.read(dy, y.values.size());
      for (std::int64_t h = 0; h < heads; ++h) {
        Weight one;
        one.view.rows = out;
        one.view.cols = in;
        one.values.assign(w.values.begin() + h * out * in, w.values.begin() + (h + 1) * out * in);
        Host part = x;
        part.values.assign(x.values.begin() + h * (in + 16), x.values.end());
        part.view.data = part.values.data();
        std::vector<float> rows_of_head;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t o = 0; o < out + 8; ++o)
            rows_of_head.push_back(got[static_cast<std::size_t>((r * heads + h) * (out + 8) + o)]);
        }
        expect_product(rows_of_head, out + 8, part, one, nullptr, type, "head");
      }
    }
  }
}

}  // namespace
}  // namespace quire::ops::cuda
