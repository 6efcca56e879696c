#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/testing.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;
using testing::levels;
using testing::random_floats;
using testing::random_weight;
using testing::Rig;
using testing::TestWeight;
using testing::view;

float f16_at(const char* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return f16_to_f32(bits);
}

// What a product sees of a row: rounded to its activation format and back.
std::vector<float> seen(const ProductTable& products, ActivationFormat format, const float* x,
                        std::int64_t cols) {
  std::vector<float> values(x, x + cols);
  if (format == ActivationFormat::f32) return values;
  std::vector<char> raw(static_cast<std::size_t>(activation_row_bytes(format, cols)));
  products.round_row(format, x, raw.data(), cols);
  for (std::int64_t i = 0; i < cols; ++i) {
    float& v = values[static_cast<std::size_t>(i)];
    const char* block32 = raw.data() + i / 32 * (format == ActivationFormat::q8_0 ? 34 : 36);
    const char* block256 = raw.data() + i / 256 * 292;
    float d = 0.0f;
    switch (format) {
      case ActivationFormat::q8_0:
        v = f16_at(block32) * static_cast<float>(static_cast<signed char>(block32[2 + i % 32]));
        break;
      case ActivationFormat::q8_1:
        v = f16_at(block32) * static_cast<float>(static_cast<signed char>(block32[4 + i % 32]));
        break;
      case ActivationFormat::q8_k:
        std::memcpy(&d, block256, 4);
        v = d * static_cast<float>(static_cast<signed char>(block256[4 + i % 256]));
        break;
      default:
        break;
    }
  }
  return values;
}

struct Shape {
  std::int64_t cols, rows;
};

std::vector<Shape> shapes_of(WeightFormat format) {
  const std::int64_t block = weight_format_info(format).block_elements;
  if (block == 256) return {{256, 33}, {512, 130}, {2048, 17}};
  if (block == 32) return {{32, 1}, {96, 37}, {576, 130}, {1536, 66}, {4096, 19}};
  return {{1, 5},    {7, 3},     {16, 4},    {48, 65},   {100, 66},
          {131, 37}, {192, 259}, {576, 130}, {2048, 67}, {4096, 16}};
}

std::vector<float> run(Rig& rig, const WeightView& weight, std::vector<float>& x, std::int64_t first,
                       std::int64_t rows, const float* bias = nullptr) {
  std::vector<float> y(static_cast<std::size_t>(rows * weight.rows), NAN);
  Linear linear;
  linear.x = TensorView::matrix(x.data() + first * weight.cols, DType::f32, rows, weight.cols);
  linear.targets[0] = {weight, bias, view(y, rows, weight.rows)};
  linear.target_count = 1;
  rig.ops->linear(linear, *rig.stream);
  rig.stream->synchronize();
  return y;
}

class Formats : public ::testing::TestWithParam<Isa> {};

TEST_P(Formats, EveryLineOfTheTableMultiplies) {
  Rig rig(GetParam());
  const ProductTable products(GetParam());
  for (const LinearFormat& line : rig.ops->linear_formats()) {
    const Product& product = *products.find(line.format);
    for (const Shape& shape : shapes_of(line.format)) {
      const TestWeight w = random_weight(line.format, shape.rows, shape.cols, 3);
      const std::vector<float> values = testing::dequantised(products, w.view);
      const std::int64_t rows = 19;
      std::vector<float> x = random_floats(rows * shape.cols, 5);
      const std::vector<float> bias = random_floats(shape.rows, 6);
      const std::vector<float> y = run(rig, w.view, x, 0, rows, bias.data());
      // Q8_1 keeps the sum of a block as a 16-bit float: 2^-11 of it.
      const double relative = product.activation == ActivationFormat::q8_1 ? 1e-3 : 4e-6;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::vector<float> a =
            seen(products, product.activation, x.data() + r * shape.cols, shape.cols);
        for (std::int64_t o = 0; o < shape.rows; ++o) {
          double expected = bias[static_cast<std::size_t>(o)], magnitude = std::fabs(expected) + 1e-3;
          for (std::int64_t c = 0; c < shape.cols; ++c) {
            const double term =
                double{a[static_cast<std::size_t>(c)]} * values[static_cast<std::size_t>(o * shape.cols + c)];
            expected += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(y[static_cast<std::size_t>(r * shape.rows + o)], expected, relative * magnitude)
              << weight_format_info(line.format).name << " " << shape.cols << " x " << shape.rows << " row "
              << r;
        }
      }
    }
  }
}

TEST_P(Formats, ARowsBitsDoNotDependOnTheOtherRows) {
  Rig rig(GetParam());
  const std::int64_t all = 140;
  // The portable level has no tiles, and is slow: a few counts do.
  const std::int64_t step = GetParam() == Isa::portable ? 13 : 1;
  for (const LinearFormat& line : rig.ops->linear_formats()) {
    for (const Shape& shape : shapes_of(line.format)) {
      const TestWeight w = random_weight(line.format, shape.rows, shape.cols, 13);
      std::vector<float> x = random_floats(all * shape.cols, 15);
      const std::vector<float> whole = run(rig, w.view, x, 0, all);
      for (std::int64_t rows = 1; rows <= 70; rows += step) {
        const std::int64_t first = rows * 7 % (all - rows + 1);
        const std::vector<float> part = run(rig, w.view, x, first, rows);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * shape.rows, part.size() * sizeof(float)), 0)
            << weight_format_info(line.format).name << " " << shape.cols << " x " << shape.rows << ", "
            << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(Formats, ThreadsDoNotChangeBits) {
  for (WeightFormat format :
       {WeightFormat::f32, WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_1}) {
    const TestWeight w = random_weight(format, 300, 576, 23);
    std::vector<float> x = random_floats(70 * 576, 25);
    Rig one(GetParam(), 1);
    const std::vector<float> expected = run(one, w.view, x, 0, 70);
    for (int threads : {2, 3}) {
      Rig more(GetParam(), threads);
      EXPECT_EQ(run(more, w.view, x, 0, 70), expected);
      EXPECT_EQ(std::memcmp(run(more, w.view, x, 3, 1).data(), expected.data() + 3 * 300, 300 * 4), 0);
    }
  }
}

TEST_P(Formats, EveryE4m3IsUnpackedExactly) {
  const ProductTable products(GetParam());
  const Product& product = *products.find(WeightFormat::fp8_e4m3);
  std::vector<unsigned char> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<unsigned char>(i * 37);
  for (std::size_t begin : {0, 1, 100}) {
    for (std::size_t n = 0; n <= 156; ++n) {
      std::vector<float> y(n + 1, 7.0f);
      product.dequantise(all.data() + begin, y.data(), static_cast<std::int64_t>(n));
      for (std::size_t i = 0; i < n; ++i) {
        const float want = fp8_e4m3_to_f32(all[begin + i]);
        ASSERT_TRUE(y[i] == want || (std::isnan(y[i]) && std::isnan(want)))
            << int{all[begin + i]} << " is " << y[i];
      }
      ASSERT_EQ(y[n], 7.0f);
    }
  }
}

TEST_P(Formats, PermissionToRoundIsNotUsed) {
  Rig rig(GetParam());
  const TestWeight w = random_weight(WeightFormat::fp8_e4m3, 40, 96, 61);
  std::vector<float> x = random_floats(20 * 96, 62), y(20 * 40, NAN);
  Linear linear{view(x, 20, 96), {{w.view, nullptr, view(y, 20, 40)}}, 1, RowRounding::e4m3};
  rig.ops->linear(linear, *rig.stream);
  rig.stream->synchronize();
  EXPECT_EQ(y, run(rig, w.view, x, 0, 20));
  const auto formats = rig.ops->linear_formats();
  EXPECT_TRUE(std::all_of(formats.begin(), formats.end(),
                          [](const LinearFormat& line) { return line.rounded_activation.empty(); }));
}

// Several weights of several formats over one strided input equal one call each.
TEST_P(Formats, TargetsShareTheirInput) {
  Rig rig(GetParam());
  const WeightFormat formats[] = {WeightFormat::q4_1, WeightFormat::q8_0, WeightFormat::q4_1,
                                  WeightFormat::f32};
  const std::int64_t rows = 5, cols = 96, stride = 130;
  std::vector<float> padded = random_floats(rows * stride, 31), dense;
  for (std::int64_t r = 0; r < rows; ++r) {
    dense.insert(dense.end(), padded.begin() + r * stride, padded.begin() + r * stride + cols);
  }
  Linear linear;
  linear.x = view(padded, rows, cols, stride);
  std::vector<TestWeight> weights;
  std::vector<std::vector<float>> outs(4, std::vector<float>(static_cast<std::size_t>(rows * 80), NAN));
  for (unsigned t = 0; t < 4; ++t) weights.push_back(random_weight(formats[t], 40 + 8 * t, cols, 40 + t));
  for (std::size_t t = 0; t < 4; ++t) {
    linear.targets[t] = {weights[t].view, nullptr, view(outs[t], rows, weights[t].view.rows, 80)};
  }
  linear.target_count = 4;
  rig.ops->linear(linear, *rig.stream);
  rig.stream->synchronize();
  for (std::size_t t = 0; t < 4; ++t) {
    const std::vector<float> alone = run(rig, weights[t].view, dense, 0, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < 80; ++o) {
        const float value = outs[t][static_cast<std::size_t>(r * 80 + o)];
        if (o < weights[t].view.rows)
          ASSERT_EQ(value, alone[static_cast<std::size_t>(r * weights[t].view.rows + o)]);
        else
          ASSERT_TRUE(std::isnan(value)) << "written past the row";
      }
    }
  }
}

TEST_P(Formats, HeadLinearIsOneMatrixPerHead) {
  Rig rig(GetParam());
  const std::int64_t rows = 9, heads = 5, in = 64, out = 24;
  for (WeightFormat format : {WeightFormat::f32, WeightFormat::q8_0, WeightFormat::fp8_e4m3}) {
    const TestWeight w = random_weight(format, out, in, 51, heads);
    std::vector<float> x = random_floats(rows * heads * in, 52),
                       y(static_cast<std::size_t>(rows * heads * out), NAN);
    HeadLinear args{TensorView::heads(x.data(), DType::f32, rows, heads, in), w.view,
                    TensorView::heads(y.data(), DType::f32, rows, heads, out)};
    rig.ops->head_linear(args, *rig.stream);
    rig.stream->synchronize();
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<float> of_head;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto begin = x.begin() + (r * heads + h) * in;
        of_head.insert(of_head.end(), begin, begin + in);
      }
      const std::vector<float> expected = run(rig, w.view.expert(h), of_head, 0, rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        EXPECT_EQ(std::memcmp(&y[static_cast<std::size_t>((r * heads + h) * out)],
                              &expected[static_cast<std::size_t>(r * out)], out * 4),
                  0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Formats, ::testing::ValuesIn(levels()),
                         [](const auto& level) { return std::string(to_string(level.param)); });

}  // namespace
}  // namespace quire::ops::cpu
