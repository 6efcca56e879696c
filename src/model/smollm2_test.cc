// The real model against its stored log-probabilities (golden/smollm2/README.md), with that file's
// tolerances: which of its rows applies follows from how the products see their activations and from the
// cache's type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/golden_dir.h"
#include "model/testing/harness.h"

namespace quire::model {
namespace {

using testing::Chunk;
using testing::Harness;
using testing::HarnessOptions;

// A row of the README's table.
struct Tolerance {
  double mean, largest;
  double kl_mean, kl_largest;
  double near_tie;  // greedy answers may part where the stored margin is not over it
};
// "equal" for the exact row: a margin of 1e-3 is what its largest difference could turn.
constexpr Tolerance kExact{1e-4, 1e-3, 1e-6, 1e-6, 1e-3};
constexpr Tolerance kHalfCache{1e-3, 1e-2, 1e-6, 3e-5, 0.02};
constexpr Tolerance kRounded{0.08, 0.6, 0.006, 0.05, 0.3};
constexpr double kBias = 0.01;  // of the mean of the signed differences, in every row

struct Golden {
  std::vector<std::int32_t> ids, greedy;
  std::vector<double> logprobs, greedy_margin;
  struct Best {
    std::size_t position;
    std::vector<std::int32_t> ids;
    std::vector<double> logprobs;
  };
  std::vector<Best> best;
};

Golden read_golden(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json tree = nlohmann::json::parse(file);
  Golden golden;
  tree.at("ids").get_to(golden.ids);
  tree.at("logprobs").get_to(golden.logprobs);
  tree.at("greedy").get_to(golden.greedy);
  tree.at("greedy_margin").get_to(golden.greedy_margin);
  for (const nlohmann::json& entry : tree.at("top5")) {
    golden.best.push_back({entry.at("position").get<std::size_t>(),
                           entry.at("ids").get<std::vector<std::int32_t>>(),
                           entry.at("logprobs").get<std::vector<double>>()});
  }
  return golden;
}

double log_sum_exp(const float* logits, std::int64_t vocab) {
  const double most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - most);
  return most + std::log(sum);
}

// Of the five best tokens and the rest as a sixth class: a lower bound of the whole divergence.
double divergence(const Golden::Best& best, const float* logits, std::int64_t vocab) {
  const double total = log_sum_exp(logits, vocab);
  double kl = 0, rest = 1, our_rest = 1;
  for (std::size_t i = 0; i < best.ids.size(); ++i) {
    const double golden = best.logprobs[i], ours = logits[best.ids[i]] - total;
    kl += std::exp(golden) * (golden - ours);
    rest -= std::exp(golden);
    our_rest -= std::exp(ours);
  }
  return rest > 1e-5 ? kl + rest * std::log(rest / our_rest) : kl;
}

void expect_logprobs(const Golden& golden, const std::vector<float>& logits, std::int64_t vocab,
                     const Tolerance& tolerance) {
  double signed_sum = 0, sum = 0, largest = 0, kl_sum = 0, kl_largest = 0;
  for (std::size_t t = 0; t + 1 < golden.ids.size(); ++t) {
    const float* row = logits.data() + static_cast<std::int64_t>(t) * vocab;
    const double difference = row[golden.ids[t + 1]] - log_sum_exp(row, vocab) - golden.logprobs[t];
    ASSERT_FALSE(std::isnan(difference)) << "position " << t;
    signed_sum += difference;
    sum += std::fabs(difference);
    largest = std::max(largest, std::fabs(difference));
  }
  for (const Golden::Best& best : golden.best) {
    const double kl =
        divergence(best, logits.data() + static_cast<std::int64_t>(best.position) * vocab, vocab);
    kl_sum += kl;
    kl_largest = std::max(kl_largest, kl);
  }
  const auto count = static_cast<double>(golden.logprobs.size());
  const double kl_mean = kl_sum / static_cast<double>(golden.best.size());
  std::printf("  dlogprob signed mean %+.1e, mean %.1e, largest %.1e; KL mean %.1e, largest %.1e\n",
              signed_sum / count, sum / count, largest, kl_mean, kl_largest);
  EXPECT_LE(std::fabs(signed_sum / count), kBias);
  EXPECT_LE(sum / count, tolerance.mean);
  EXPECT_LE(largest, tolerance.largest);
  EXPECT_LE(kl_mean, tolerance.kl_mean);
  EXPECT_LE(kl_largest, tolerance.kl_largest);
}

void expect_greedy(Harness& harness, const Golden& golden, std::vector<float> logits,
                   const Tolerance& tolerance) {
  const std::int64_t vocab = harness.spec().vocab;
  for (std::size_t i = 0; i < golden.greedy.size(); ++i) {
    const auto token = static_cast<std::int32_t>(std::max_element(logits.end() - vocab, logits.end()) -
                                                 (logits.end() - vocab));
    if (token != golden.greedy[i]) {
      EXPECT_LE(golden.greedy_margin[i], tolerance.near_tie) << "parts at greedy token " << i;
      return;  // what follows answers another text
    }
    logits = harness.step({Chunk{0, {token}}});
  }
}

class SmolLm2 : public ::testing::TestWithParam<DType> {};

TEST_P(SmolLm2, MatchesItsStoredLogprobs) {
  const std::string file = std::string(QUIRE_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const std::string folder = quire::testing::golden_dir() + "/smollm2/";
  if (!std::filesystem::exists(file)) FAIL() << "the model is not fetched: no " << file;
  if (!std::filesystem::exists(folder + "prose.json")) FAIL() << "no golden data at " << folder;

  auto device = platform::open_device("cpu", platform::ThreadPlan{.compute = 1});
  ASSERT_TRUE(device.ok()) << device.error().message;
  const auto ops = ops::make_ops(**device);
  Tolerance tolerance = GetParam() == DType::f16 ? kHalfCache : kExact;
  for (const ops::LinearFormat& line : ops->linear_formats()) {
    const bool used = line.format == WeightFormat::q4_1 || line.format == WeightFormat::q8_0;
    if (used && line.activation != "f32") tolerance = kRounded;
  }

  HarnessOptions options;
  options.kv_type = GetParam();
  auto opened = Harness::open(file, options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  Harness& harness = **opened;
  for (const char* name : {"prose", "code", "numbers"}) {
    SCOPED_TRACE(name);
    const Golden golden = read_golden(folder + name + ".json");
    harness.reset(0);
    const std::vector<float> logits = harness.step({Chunk{0, golden.ids}});
    expect_logprobs(golden, logits, harness.spec().vocab, tolerance);
    expect_greedy(harness, golden, logits, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, SmolLm2, ::testing::Values(DType::f32, DType::f16),
                         [](const auto& type) { return std::string(to_string(type.param)); });

}  // namespace
}  // namespace quire::model
