// Quantised weights through an engine on a GPU, against what they stand for on the CPU in float32.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "checkpoint/test_files.h"
#include "engine/golden_case.h"
#include "model/testing/fp8_folder.h"
#include "platform/platform.h"

namespace quire::engine::testing {
namespace {

std::vector<std::int32_t> prompt_of(std::int32_t tokens) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < tokens; ++i) prompt.push_back((i * 37 + 11) % 250);
  return prompt;
}

// The mean difference of the log-probabilities of a prompt.
double mean_difference(Engine& a, Engine& b, std::int32_t tokens) {
  const Request request = score_request(prompt_of(tokens));
  const Answer x = run_all(a, {request})[0], y = run_all(b, {request})[0];
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < x.scored.size(); ++i)
    sum += std::fabs(x.scored[i].logprob - y.scored[i].logprob);
  return sum / static_cast<double>(x.scored.size() - 1);
}

class DeviceFp8 : public ::testing::TestWithParam<const char*> {};

// The tiny models' logits have a standard deviation of 1 to 2. Rounding activations to e4m3 on the CPU moved
// log-probabilities by 0.064 to 0.109 in the mean, bf16 moves them by a tenth of that. Prompts of up to 16
// tokens are not rounded, longer ones are, where cuBLASLt has the product (sm_90).
TEST_P(DeviceFp8, AsRoughAsRoundedActivationsAtMost) {
  const checkpoint::testing::TempFolder folder;
  model::testing::write_fp8_folders(quire::testing::golden_dir() + "/models/" + GetParam(), folder.path(),
                                    {});
  Options options = tiny_options();
  options.chunk_tokens = 256;
  options.max_context = 320;
  options.kv_dtype = "f32";
  const std::unique_ptr<Engine> wide = open_engine(folder.path() + "/wide", options);
  options.device = "cuda";
  options.kv_dtype = "auto";
  const std::unique_ptr<Engine> fp8 = open_engine(folder.path() + "/fp8", options);
  ASSERT_TRUE(wide != nullptr && fp8 != nullptr);
  const double few = mean_difference(*fp8, *wide, 16), many = mean_difference(*fp8, *wide, 250);
  std::printf("  %s: mean difference %.4f of 16 tokens, %.4f of 250\n", GetParam(), few, many);
  EXPECT_LE(few, 0.05);
  EXPECT_LE(many, 0.2);
  const auto device = platform::open_device("cuda", platform::ThreadPlan{});
  const bool rounds = device.ok() && (*device)->info().arch == 90;
  EXPECT_TRUE(!rounds || many >= 2.0 * few) << "nothing was rounded";
  std::string notes;
  for (const std::string& note : fp8->info().notes) notes += note + "\n";
  EXPECT_NE(notes.find("F8_E4M3 matrices with scales"), std::string::npos) << notes;
}

// Decode in a batch of more than 16 goes through rounded products in recorded steps: the same as eager ones.
TEST_P(DeviceFp8, RecordedStepsEqualEagerOnes) {
  const checkpoint::testing::TempFolder folder;
  model::testing::write_fp8_folders(quire::testing::golden_dir() + "/models/" + GetParam(), folder.path(),
                                    {});
  Options options = tiny_options();
  options.device = "cuda";
  options.max_running = 24;
  options.kv_memory_bytes = 64 << 20;
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 24; ++i) requests.push_back(greedy_request(prompt_of(5 + i), 8));
  const std::unique_ptr<Engine> recorded = open_engine(folder.path() + "/fp8", options);
  options.graphs = false;
  const std::unique_ptr<Engine> eager = open_engine(folder.path() + "/fp8", options);
  ASSERT_TRUE(recorded != nullptr && eager != nullptr);
  expect_same_tokens(run_all(*recorded, requests), run_all(*eager, requests), GetParam());
  EXPECT_GT(recorded->stats().replayed_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceFp8, ::testing::Values("llama", "qwen2", "gemma3"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace quire::engine::testing
