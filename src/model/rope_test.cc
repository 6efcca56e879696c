#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace quire::model {
namespace {

TEST(Rope, PlainAndLinear) {
  RopeSpec rope;
  rope.theta = 10000;
  rope.rotary_dim = 8;
  const auto plain = rope_inv_freq(rope);
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[1], 0.1, 1e-15);
  EXPECT_NEAR(plain[3], 0.001, 1e-17);
  rope.kind = RopeKind::linear;
  rope.factor = 8;
  EXPECT_DOUBLE_EQ(rope_inv_freq(rope)[1], plain[1] / 8);
}

TEST(Rope, Llama3KeepsShortWavesAndDividesLongOnes) {
  RopeSpec rope;
  rope.kind = RopeKind::llama3;
  rope.theta = 500000;
  rope.rotary_dim = 64;
  rope.factor = 8;
  rope.original_max = 64;
  RopeSpec plain = rope;
  plain.kind = RopeKind::plain;
  const auto scaled = rope_inv_freq(rope);
  const auto base = rope_inv_freq(plain);
  int kept = 0;
  int divided = 0;
  int blended = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double wave = 2 * std::numbers::pi / base[i];
    const double ratio = base[i] / scaled[i];
    if (wave < 64 / 4.0) {
      EXPECT_DOUBLE_EQ(ratio, 1.0);
      ++kept;
    } else if (wave > 64) {
      EXPECT_NEAR(ratio, 8.0, 1e-12);
      ++divided;
    } else {
      EXPECT_GT(ratio, 1.0);
      EXPECT_LT(ratio, 8.0);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

// Yarn written out once more from its definition, pair by pair.
TEST(Rope, YarnBordersTruncatedAndNot) {
  for (const bool truncate : {true, false}) {
    RopeSpec rope;
    rope.kind = RopeKind::yarn;
    rope.theta = 150000;
    rope.rotary_dim = 64;
    rope.factor = 32;
    rope.original_max = 4096;
    rope.truncate = truncate;
    double low = 64 * std::log(4096 / (32 * 2 * std::numbers::pi)) / (2 * std::log(150000.0));
    double high = 64 * std::log(4096 / (1 * 2 * std::numbers::pi)) / (2 * std::log(150000.0));
    if (truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    const auto table = rope_inv_freq(rope);
    for (int i = 0; i < 32; ++i) {
      const double base = std::pow(150000.0, -2.0 * i / 64);
      const double share = i <= low ? 0 : i >= high ? 1 : (i - low) / (high - low);
      EXPECT_NEAR(table[static_cast<std::size_t>(i)] / base, share / 32 + 1 - share, 1e-12) << i;
    }
  }
}

TEST(Rope, YarnWithEqualBordersIsFinite) {
  RopeSpec rope;
  rope.kind = RopeKind::yarn;
  rope.rotary_dim = 8;
  rope.factor = 4;
  rope.original_max = 1;  // both borders fall below pair 0
  for (const double frequency : rope_inv_freq(rope)) EXPECT_TRUE(std::isfinite(frequency) && frequency > 0);
}

TEST(Rope, FrequencyFactorsDivide) {
  RopeSpec rope;
  rope.rotary_dim = 4;
  const auto base = rope_inv_freq(rope);
  rope.freq_factors = {1.0f, 8.0f};
  EXPECT_DOUBLE_EQ(rope_inv_freq(rope)[0], base[0]);
  EXPECT_DOUBLE_EQ(rope_inv_freq(rope)[1], base[1] / 8);
}

TEST(Rope, Mscale) {
  EXPECT_DOUBLE_EQ(yarn_mscale(0.5, 1), 1.0);
  EXPECT_DOUBLE_EQ(yarn_mscale(40, 1), 0.1 * std::log(40.0) + 1);
  EXPECT_DOUBLE_EQ(yarn_mscale(40, 0.707), 0.0707 * std::log(40.0) + 1);
}

}  // namespace
}  // namespace quire::model
