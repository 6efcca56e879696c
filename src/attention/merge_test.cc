#include "attention/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace quire::attention {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kRows = 7, kHeads = 3, kDim = 5;

struct Part {
  std::vector<float> out = std::vector<float>(kRows * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(kRows * kHeads);
};

Part random_part(std::mt19937& rng, float lse_spread) {
  std::normal_distribution<float> normal;
  Part part;
  for (float& x : part.out) x = normal(rng);
  for (float& x : part.lse) x = lse_spread * normal(rng);
  return part;
}

Part merged(const std::vector<Part>& parts, const float* sink = nullptr) {
  auto device = platform::open_device("cpu", {.compute = 2});
  auto stream = (*device)->make_stream();
  Part result;
  MergeArgs args;
  for (const Part& part : parts) args.parts[args.part_count++] = {part.out.data(), part.lse.data()};
  args.rows = kRows;
  args.heads = kHeads;
  args.dim = kDim;
  args.out = result.out.data();
  args.out_row_stride = kHeads * kDim;
  args.lse = result.lse.data();
  args.sink = sink;
  merge(args, *stream);
  stream->synchronize();
  return result;
}

void expect_near(const Part& a, const Part& b) {
  for (std::size_t i = 0; i < a.out.size(); ++i) EXPECT_NEAR(a.out[i], b.out[i], 1e-5f);
  for (std::size_t i = 0; i < a.lse.size(); ++i)
    EXPECT_NEAR(a.lse[i], b.lse[i], 1e-4f + std::fabs(b.lse[i]) * 1e-6f);
}

TEST(Merge, IsTheWeightedMean) {
  std::mt19937 rng(1);
  const Part a = random_part(rng, 3), b = random_part(rng, 3);
  const Part m = merged({a, b});
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    const double wa = std::exp(a.lse[i]), wb = std::exp(b.lse[i]);
    EXPECT_NEAR(m.lse[i], std::log(wa + wb), 1e-5);
    for (std::size_t d = 0; d < kDim; ++d) {
      const std::size_t at = i * kDim + d;
      EXPECT_NEAR(m.out[at], (wa * a.out[at] + wb * b.out[at]) / (wa + wb), 1e-5);
    }
  }
}

TEST(Merge, IsAssociativeAndHasAnIdentity) {
  std::mt19937 rng(2);
  const Part a = random_part(rng, 2), b = random_part(rng, 2), c = random_part(rng, 2);
  expect_near(merged({merged({a, b}), c}), merged({a, merged({b, c})}));
  expect_near(merged({a, b, c}), merged({a, merged({b, c})}));
  Part empty;
  std::fill(empty.out.begin(), empty.out.end(), std::numeric_limits<float>::quiet_NaN());
  std::fill(empty.lse.begin(), empty.lse.end(), kMinusInfinity);
  expect_near(merged({empty, a, empty}), a);
  const Part nothing = merged({empty, empty});
  for (float x : nothing.out) EXPECT_EQ(x, 0.0f);
  for (float x : nothing.lse) EXPECT_EQ(x, kMinusInfinity);
}

TEST(Merge, ScoresOfVeryUnequalSizeStayFinite) {
  std::mt19937 rng(3);
  Part a = random_part(rng, 1), b = random_part(rng, 1);
  for (float& x : a.lse) x = 5000;
  for (float& x : b.lse) x = -5000;
  expect_near(merged({a, b}), a);
  expect_near(merged({b, a}), a);
}

TEST(Merge, WhatIsNoNumberIsNotHidden) {
  std::mt19937 rng(6);
  Part a = random_part(rng, 1), b = random_part(rng, 1);
  const Part plain = merged({a, b});
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  a.lse[0] = b.lse[0] = kNan;  // all parts
  a.lse[1] = kNan;             // the first
  b.lse[2] = kNan;             // the last
  b.out[3 * kDim] = kNan;      // one element
  const Part m = merged({a, b});
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    EXPECT_EQ(std::isnan(m.lse[i]), i < 3) << i;
    for (std::size_t d = 0; d < kDim; ++d) {
      const std::size_t at = i * kDim + d;
      if (i < 3 || at == 3 * kDim)
        EXPECT_TRUE(std::isnan(m.out[at])) << i << " " << d;
      else
        EXPECT_EQ(m.out[at], plain.out[at]) << i << " " << d;
    }
  }
}

TEST(Merge, TheSinkCountsOnceAndNotInTheLse) {
  std::mt19937 rng(4);
  const Part a = random_part(rng, 1), b = random_part(rng, 1);
  const float sink[kHeads] = {0.5f, -2.0f, 3.0f};
  const Part plain = merged({a, b}), sunk = merged({a, b}, sink);
  for (std::size_t i = 0; i < plain.lse.size(); ++i) {
    EXPECT_EQ(plain.lse[i], sunk.lse[i]);
    const double keys = std::exp(plain.lse[i]);
    const double factor = keys / (keys + std::exp(sink[i % kHeads]));
    for (std::size_t d = 0; d < kDim; ++d)
      EXPECT_NEAR(sunk.out[i * kDim + d], plain.out[i * kDim + d] * factor, 1e-5);
  }
}

TEST(Merge, MayWriteOverItsFirstPart) {
  std::mt19937 rng(5);
  Part a = random_part(rng, 1);
  const Part b = random_part(rng, 1);
  const Part expected = merged({a, b});
  auto device = platform::open_device("cpu", {.compute = 2});
  auto stream = (*device)->make_stream();
  MergeArgs args;
  args.parts[0] = {a.out.data(), a.lse.data()};
  args.parts[1] = {b.out.data(), b.lse.data()};
  args.part_count = 2;
  args.rows = kRows;
  args.heads = kHeads;
  args.dim = kDim;
  args.out = a.out.data();
  args.out_row_stride = kHeads * kDim;
  args.lse = a.lse.data();
  merge(args, *stream);
  stream->synchronize();
  EXPECT_EQ(a.out, expected.out);
  EXPECT_EQ(a.lse, expected.lse);
}

}  // namespace
}  // namespace quire::attention
