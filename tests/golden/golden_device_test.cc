// The goldens on a GPU: every spine family with bf16 weights, its KV types, page sizes and chunk sizes,
// recorded and eager, alone and in a batch of eight. Where a run's error stands is printed, so that a gate
// that is only just met shows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/golden_dir.h"
#include "golden_run.h"

namespace quire::golden {
namespace {

Options device_options() {
  Options options;
  options.device = "cuda";
  options.max_running = 8;
  options.max_context = 1024;
  options.chunk_tokens = 1024;
  options.kv_memory_bytes = std::int64_t{256} << 20;
  return options;
}

class DeviceFamily : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = testing::golden_dir();
    ASSERT_NE(root_, "") << "the golden data is missing: set QUIRE_GOLDEN_DIR";
    expected_ = load_golden(model() + "/golden.safetensors");
  }
  std::string model() const { return root_ + "/models/" + GetParam(); }
  Answers answers_of(const Options& options, bool greedy) {
    const std::unique_ptr<Engine> engine = open_or_fail(model(), options);
    if (engine == nullptr) return {};
    Answers answers = compute(*engine, expected_, greedy);
    replayed_ = engine->stats().replayed_steps;
    return answers;
  }
  // The mean error beside that of the stored 16-bit run.
  void report(const Answers& answers, const std::string& what) const {
    std::vector<double> ours, theirs;
    for (std::size_t i = 0; i < expected_.cases.size() && i < answers.scored.size(); ++i) {
      const Case& one = expected_.cases[i];
      for (std::size_t t = 0; t < one.logprobs.size() && t < answers.scored[i].size(); ++t) {
        ours.push_back(std::abs(answers.scored[i][t].logprob - one.logprobs[t]));
        theirs.push_back(std::abs(one.bf16_logprobs[t] - one.logprobs[t]));
      }
    }
    if (ours.empty()) return;
    fmt::print("  {:<44} mean error {:.2f} x the stored 16-bit run's\n", what,
               errors_of(ours).mean / errors_of(theirs).mean);
  }
  std::string root_;
  Golden expected_;
  std::int64_t replayed_ = 0;
};

TEST_P(DeviceFamily, KvTypesPagesAndChunksWithinTheirGates) {
  for (const auto& [kv, gate] :
       {std::pair{"bf16", kBf16}, std::pair{"f16", kBf16}, std::pair{"fp8_e4m3", kFp8}}) {
    for (const int page : {16, 64, 256}) {
      for (const int chunk : {64, 1024}) {
        if (std::string(kv) != "bf16" && (chunk == 64) != (page == 64))
          continue;  // pages meet both chunks in bf16
        Options options = device_options();
        options.kv_dtype = kv;
        options.page_size = page;
        options.chunk_tokens = chunk;
        const std::string what = fmt::format("{} kv {} page {} chunk {}", GetParam(), kv, page, chunk);
        const Answers answers = answers_of(options, false);
        expect_gate(expected_, answers, gate, is_moe(GetParam()), what);
        if (page == 64) report(answers, what);
      }
    }
  }
}

// Recorded steps are the eager ones: the same tokens and the same bits of every log-probability.
TEST_P(DeviceFamily, RecordedStepsEqualEagerOnes) {
  Options options = device_options();
  const Answers recorded = answers_of(options, true);
  EXPECT_GT(replayed_, 0);
  options.graphs = false;
  const Answers eager = answers_of(options, true);
  EXPECT_EQ(replayed_, 0);
  EXPECT_EQ(recorded.greedy, eager.greedy);
  for (std::size_t i = 0; i < recorded.scored.size(); ++i) {
    ASSERT_EQ(recorded.scored[i].size(), eager.scored[i].size());
    for (std::size_t t = 0; t + 1 < recorded.scored[i].size(); ++t)
      EXPECT_EQ(recorded.scored[i][t].logprob, eager.scored[i][t].logprob) << "case " << i << " token " << t;
  }
}

TEST_P(DeviceFamily, AloneAsInABatch) {
  const Options options = device_options();
  const std::unique_ptr<Engine> engine = open_or_fail(model(), options);
  ASSERT_NE(engine, nullptr);
  const Answers together = compute(*engine, expected_, true);  // eight sequences: four scored, four answering
  Answers alone;
  for (const Case& one : expected_.cases) {
    Golden single;
    single.cases = {one};
    const Answers answers = compute(*engine, single, true);
    alone.scored.push_back(answers.scored[0]);
    alone.greedy.push_back(answers.greedy[0]);
  }
  expect_gate(expected_, together, kBf16, is_moe(GetParam()), fmt::format("{} in a batch", GetParam()));
  expect_gate(expected_, alone, kBf16, is_moe(GetParam()), fmt::format("{} alone", GetParam()));
}

// A prompt that is found in the cache is answered as it was when it was computed: both give the golden's
// tokens up to the first that was nearly another one (a cached prompt's last row goes through other
// products).
TEST_P(DeviceFamily, WarmPromptsAreAnsweredAsColdOnes) {
  const std::unique_ptr<Engine> engine = open_or_fail(model(), device_options());
  ASSERT_NE(engine, nullptr);
  const Answers cold = compute(*engine, expected_, true);
  const std::int64_t cached = engine->stats().cached_tokens;
  const Answers warm = compute(*engine, expected_, true);
  EXPECT_GT(engine->stats().cached_tokens - cached, 500);
  int compared = 0;
  for (std::size_t i = 0; i < expected_.cases.size(); ++i) {
    const Case& one = expected_.cases[i];
    ASSERT_EQ(warm.greedy[i].size(), one.greedy.size());
    for (std::size_t t = 0; t < one.greedy.size() && one.greedy_margin[t] > 0.2f * expected_.logit_std; ++t) {
      ++compared;
      EXPECT_EQ(cold.greedy[i][t], one.greedy[t]) << "case " << i << " token " << t;
      EXPECT_EQ(warm.greedy[i][t], one.greedy[t]) << "case " << i << " token " << t;
    }
  }
  fmt::print("  {}: {} tokens compared\n", GetParam(), compared);
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Spine, DeviceFamily, ::testing::ValuesIn(kFamilies),
                         [](const auto& tested) { return std::string(tested.param); });

// Quantised files are expanded to bf16 on their way: the 16-bit gate of the dequantised weights holds.
class DeviceGguf : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceGguf, ExpandedAtLoadAndSaidSo) {
  const std::string folder = testing::golden_dir() + "/gguf/" + GetParam();
  const Golden expected = load_golden(folder + "/golden.safetensors");
  const std::unique_ptr<Engine> engine = open_or_fail(folder + "/model.gguf", device_options());
  ASSERT_NE(engine, nullptr);
  expect_gate(expected, compute(*engine, expected, false), kBf16, false, GetParam());
  std::string notes;
  for (const std::string& note : engine->info().notes) notes += note + "\n";
  EXPECT_NE(notes.find("become bf16 at load"), std::string::npos) << notes;
}

INSTANTIATE_TEST_SUITE_P(Twins, DeviceGguf,
                         ::testing::Values("llama_f32", "llama_f16", "llama_q8_0", "llama_q4_0", "llama_q4_1",
                                           "qwen3_q8_0", "gemma3_q8_0"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace quire::golden
