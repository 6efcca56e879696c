// merge on a GPU against merge on the CPU: empty parts, a sink, parts that are no numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "attention/merge.h"

namespace quire::attention {
namespace {

constexpr int kRows = 37, kHeads = 5, kDim = 72, kParts = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sums {
  std::vector<float> out = std::vector<float>(kRows * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(kRows * kHeads);
};

struct Inputs {
  Sums parts[kParts];
  std::vector<float> sink = std::vector<float>(kHeads);
};

Inputs random_inputs() {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  Inputs in;
  for (float& x : in.sink) x = normal(rng);
  for (Sums& part : in.parts) {
    for (float& x : part.out) x = normal(rng);
    for (float& x : part.lse) x = 5 * normal(rng);
    for (int i = 0; i < 40; ++i) part.lse[rng() % part.lse.size()] = -kInfinity;
    part.lse[0] = -kInfinity;  // empty in all
    part.lse[1] = kNan;        // none is a number
    part.out[3 * kDim + rng() % kDim] = kNan;
  }
  in.parts[0].lse[2] = kNan;
  in.parts[kParts - 1].lse[4] = kNan;
  in.parts[1].lse[3] = 0;
  return in;
}

Sums merged_on(const char* name, const Inputs& in, bool with_sink) {
  const auto device = std::move(platform::open_device(name, {}).value());
  const auto stream = device->make_stream();
  std::vector<std::unique_ptr<platform::Buffer>> buffers;
  const auto upload = [&](const std::vector<float>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    buffers.push_back(std::move(device->allocate(bytes, "test").value()));
    stream->copy(buffers.back()->data(), values.data(), bytes);
    return static_cast<float*>(buffers.back()->data());
  };
  Sums result;
  MergeArgs args;
  args.part_count = kParts;
  for (int i = 0; i < kParts; ++i) args.parts[i] = {upload(in.parts[i].out), upload(in.parts[i].lse)};
  args.rows = kRows;
  args.heads = kHeads;
  args.dim = kDim;
  args.out = upload(result.out);
  args.out_row_stride = kHeads * kDim;
  args.lse = upload(result.lse);
  if (with_sink) args.sink = upload(in.sink);
  merge(args, *stream);
  stream->copy(result.out.data(), args.out, static_cast<std::int64_t>(result.out.size() * sizeof(float)));
  stream->copy(result.lse.data(), args.lse, static_cast<std::int64_t>(result.lse.size() * sizeof(float)));
  stream->synchronize();
  return result;
}

void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << i;
    if (std::isfinite(expected[i]))
      EXPECT_NEAR(got[i], expected[i], 1e-5f + 1e-5f * std::fabs(expected[i])) << i;
    else if (!std::isnan(expected[i]))
      EXPECT_EQ(got[i], expected[i]) << i;
  }
}

TEST(MergeOnDevice, AgreesWithTheCpu) {
  const Inputs in = random_inputs();
  for (const bool with_sink : {false, true}) {
    const Sums expected = merged_on("cpu", in, with_sink);
    const Sums got = merged_on("cuda", in, with_sink);
    EXPECT_TRUE(std::isnan(expected.lse[1]) && std::isnan(expected.out[kDim]));
    EXPECT_EQ(expected.lse[0], -kInfinity);
    expect_same(got.lse, expected.lse);
    expect_same(got.out, expected.out);
  }
}

}  // namespace
}  // namespace quire::attention
