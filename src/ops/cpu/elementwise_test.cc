#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/testing.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;
using testing::levels;
using testing::random_floats;
using testing::Rig;
using testing::view;

class Rows : public ::testing::TestWithParam<Isa> {
 protected:
  Rig rig_{GetParam()};
};

void expect_near_all(const std::vector<float>& got, const std::vector<double>& expected, double relative,
                     double absolute) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], relative * std::fabs(expected[i]) + absolute) << "at " << i;
  }
}

TEST_P(Rows, RmsNormWithAndWithoutAdd) {
  for (std::int64_t n : {1, 3, 4, 7, 16, 31, 33, 64, 100, 576, 1531}) {
    const std::int64_t rows = 17;
    std::vector<float> x = random_floats(rows * n, 1, 3.0f), add = random_floats(rows * n, 2),
                       weight = random_floats(n, 3);
    std::vector<float> y(x.size(), NAN), summed = x;
    rig_.ops->rms_norm({view(summed, rows, n), view(add, rows, n), weight.data(), 1e-5f, view(y, rows, n)},
                       *rig_.stream);
    rig_.stream->synchronize();
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < n; ++i) squares += std::pow(double{x[r * n + i]} + add[r * n + i], 2);
      for (std::int64_t i = 0; i < n; ++i) {
        expected.push_back((double{x[r * n + i]} + add[r * n + i]) / std::sqrt(squares / n + 1e-5) *
                           weight[i]);
      }
    }
    expect_near_all(y, expected, 2e-6, 1e-6);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(summed[i], x[i] + add[i]);

    std::vector<float> in_place = x;
    rig_.ops->rms_norm({view(in_place, rows, n), {}, weight.data(), 1e-5f, view(in_place, rows, n)},
                       *rig_.stream);
    std::vector<float> only_add = x;
    rig_.ops->rms_norm({view(only_add, rows, n), view(add, rows, n), nullptr, 0.0f, {}}, *rig_.stream);
    std::vector<float> alone(static_cast<std::size_t>(n));
    std::vector<float> last(x.end() - n, x.end());
    rig_.ops->rms_norm({view(last, 1, n), {}, weight.data(), 1e-5f, view(alone, 1, n)}, *rig_.stream);
    rig_.stream->synchronize();
    EXPECT_EQ(only_add, summed);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), in_place.end() - n))
        << "a row alone has the same bits";
  }
}

TEST_P(Rows, RmsNormOverEveryHeadOfStridedRows) {
  const std::int64_t rows = 3, heads = 4, dim = 20, stride = 100;
  std::vector<float> x = random_floats(rows * stride, 5), weight = random_floats(dim, 6), y(x.size(), NAN);
  TensorView in = TensorView::matrix(x.data(), DType::f32, rows, heads * dim, stride).split_heads(heads);
  TensorView out = TensorView::matrix(y.data(), DType::f32, rows, heads * dim, stride).split_heads(heads);
  rig_.ops->rms_norm({in, {}, weight.data(), 1e-6f, out}, *rig_.stream);
  rig_.stream->synchronize();
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < heads; ++h) {
      double squares = 0.0;
      const std::int64_t at = r * stride + h * dim;
      for (std::int64_t i = 0; i < dim; ++i) squares += double{x[at + i]} * x[at + i];
      for (std::int64_t i = 0; i < dim; ++i) {
        EXPECT_NEAR(y[at + i], x[at + i] / std::sqrt(squares / dim + 1e-6) * weight[i], 1e-5);
      }
    }
    EXPECT_TRUE(std::isnan(y[r * stride + heads * dim]));
  }
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST_P(Rows, GatedActivations) {
  std::vector<float> gate, up;
  for (float g = -110.0f; g <= 110.0f; g += 0.37f) gate.push_back(g);
  for (float g = -2.0f; g <= 2.0f; g += 0.003f) gate.push_back(g);
  const auto n = static_cast<std::int64_t>(gate.size());
  up = random_floats(n, 9, 5.0f);
  for (Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::swiglu_clamp}) {
    std::vector<float> y(gate.size(), NAN), in_place = gate;
    const float limit = 7.0f;
    rig_.ops->gated_activation({kind, limit, view(gate, 1, n), view(up, 1, n), view(y, 1, n)}, *rig_.stream);
    rig_.ops->gated_activation({kind, limit, view(in_place, 1, n), view(up, 1, n), view(in_place, 1, n)},
                               *rig_.stream);
    rig_.stream->synchronize();
    EXPECT_EQ(y, in_place);
    std::vector<double> expected;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i], u = up[i];
      if (kind == Activation::silu) expected.push_back(g * sigmoid(g) * u);
      if (kind == Activation::gelu_tanh) {
        expected.push_back(g * sigmoid(2.0 * std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)) * u);
      }
      if (kind == Activation::swiglu_clamp) {
        const double gc = std::min(g, 7.0), uc = std::min(std::max(u, -7.0), 7.0);
        expected.push_back((uc + 1.0) * gc * sigmoid(1.702 * gc));
      }
    }
    // Where the sigmoid is e^-x of a large x, the rounding of x itself shows: 2^-24 of x.
    expect_near_all(y, expected, kind == Activation::gelu_tanh ? 2e-5 : 6e-6, 1e-9);
  }
}

TEST_P(Rows, SoftcapAndScale) {
  std::vector<float> x;
  for (float v = -200.0f; v < 200.0f; v += 0.31f) x.push_back(v);
  for (float v = -1e-3f; v < 1e-3f; v += 1e-5f) x.push_back(v);
  const auto n = static_cast<std::int64_t>(x.size());
  for (float cap : {0.0f, 30.0f, 50.0f}) {
    std::vector<float> y = x;
    rig_.ops->softcap_scale({view(y, 1, n), 0.7f, cap}, *rig_.stream);
    rig_.stream->synchronize();
    std::vector<double> expected;
    for (float v : x) expected.push_back(cap == 0.0f ? 0.7 * v : cap * std::tanh(0.7 * v / cap));
    expect_near_all(y, expected, 2e-6, 1e-12);
  }
}

TEST_P(Rows, RopeAnglesAreFloatProducts) {
  const std::int64_t rows = 40, dim = 24;
  std::vector<std::int32_t> positions;
  for (int i = 0; i < rows; ++i) positions.push_back(i * i * 17);
  std::vector<float> freq, out(rows * dim, NAN);
  for (int i = 0; i < dim / 2; ++i) freq.push_back(std::pow(10000.0f, -2.0f * i / dim));
  rig_.ops->rope_angles({positions.data(), freq.data(), 1.25f, dim, rows, out.data()}, *rig_.stream);
  rig_.stream->synchronize();
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < dim / 2; ++i) {
      const float angle = static_cast<float>(positions[r]) * freq[i];
      EXPECT_NEAR(out[r * dim + i], std::cos(double{angle}) * 1.25, 2e-7);
      EXPECT_NEAR(out[r * dim + dim / 2 + i], std::sin(double{angle}) * 1.25, 2e-7);
    }
  }
}

// The exponential behind all of it, over its whole range and its borders.
TEST_P(Rows, ExpIsWithinTwoUnits) {
  const RowMath& math = row_math(GetParam());
  std::vector<float> x;
  for (float v = -87.3f; v < 88.7f; v += 0.0117f) x.push_back(v);
  for (float v : {0.0f, -0.0f, 88.72f, -87.336f}) x.push_back(v);
  std::vector<float> y(x.size());
  math.exp_shifted(x.data(), 0.0f, y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i] / std::exp(double{x[i]}), 1.0, 2.5e-7) << x[i];
  }
  const float inf = INFINITY;
  std::vector<float> edges{inf, -inf, NAN, 100.0f, -100.0f}, out(5);
  math.exp_shifted(edges.data(), 0.0f, out.data(), 5);
  EXPECT_EQ(out[0], inf);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], inf);
  EXPECT_EQ(out[4], 0.0f);
}

TEST_P(Rows, SixteenBitConversionsEqualTheScalarOnes) {
  const RowMath& math = row_math(GetParam());
  std::vector<float> x = random_floats(4099, 77, 100.0f);
  for (float v :
       {0.0f, -0.0f, 65504.0f, 65519.0f, 65520.0f, 1e30f, 6e-8f, 1e-7f, 3.4e38f, 1.00390625f, 1.01171875f}) {
    x.push_back(v);
    x.push_back(-v);
  }
  x.push_back(INFINITY);
  std::vector<std::uint16_t> bf16(x.size()), f16(x.size());
  math.to_bf16(x.data(), bf16.data(), static_cast<std::int64_t>(x.size()));
  row_to_f16(math, x.data(), f16.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bf16[i], f32_to_bf16(x[i])) << x[i];
    ASSERT_EQ(f16[i], f32_to_f16(x[i])) << x[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Rows, ::testing::ValuesIn(levels()),
                         [](const auto& level) { return std::string(to_string(level.param)); });

}  // namespace
}  // namespace quire::ops::cpu
