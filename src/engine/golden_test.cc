// The golden models through the whole engine: pages, chunks, batches, graphs, both attention rows.
#include <cmath>

#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

constexpr float kGate = 2e-4f;     // of log-probabilities, float32
constexpr float kNearTie = 5e-3f;  // of logit_std

void expect_scores(const Golden& golden, const GoldenCase& expected, const Answer& answer,
                   const std::string& what) {
  ASSERT_EQ(answer.scored.size(), expected.tokens.size()) << what;
  float worst = 0.0f;
  for (std::size_t i = 0; i < answer.scored.size(); ++i) {
    if (i + 1 < answer.scored.size())
      worst = std::max(worst, std::abs(answer.scored[i].logprob - expected.logprobs[i]));
    if (expected.margin[i] > kNearTie * golden.logit_std) {
      EXPECT_EQ(answer.scored[i].argmax, expected.argmax[i]) << what << " position " << i;
    }
  }
  EXPECT_TRUE(std::isnan(answer.scored.back().logprob));
  EXPECT_LE(worst, kGate) << what;
}

void expect_golden(const std::string& folder, const Options& options, const std::string& what) {
  const Golden golden = read_golden(folder);
  if (golden.path.empty()) FAIL() << "no golden data for " << folder;
  std::unique_ptr<Engine> engine = open_engine(golden.path, options);
  ASSERT_NE(engine, nullptr) << what;
  std::vector<Request> requests;
  for (const GoldenCase& c : golden.cases) {
    requests.push_back(score_request(c.tokens));
    requests.push_back(greedy_request(c.tokens, static_cast<std::int32_t>(c.greedy.size())));
  }
  const std::vector<Answer> answers = run_all(*engine, requests);
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    const std::string name = folder + " " + what + " case " + std::to_string(i);
    expect_scores(golden, golden.cases[i], answers[2 * i], name);
    EXPECT_EQ(answers[2 * i + 1].tokens, golden.cases[i].greedy) << name;
    EXPECT_EQ(answers[2 * i + 1].last.finish, Finish::length) << name;
  }
}

Options f32_options() {
  Options options;
  options.kv_dtype = "f32";
  options.threads = 2;
  options.kv_memory_bytes = 64 << 20;
  return options;
}

TEST(Golden, PageSizes) {
  for (const int page : {1, 7, 16, 64, 256}) {
    Options options = f32_options();
    options.page_size = page;
    expect_golden("models/llama", options, "page " + std::to_string(page));
  }
}

TEST(Golden, ChunkSizes) {
  for (const int chunk : {1, 5, 64, 1024}) {
    Options options = f32_options();
    options.chunk_tokens = chunk;
    expect_golden("models/qwen3", options, "chunk " + std::to_string(chunk));
  }
}

TEST(Golden, TwoGroups) {
  for (const int chunk : {5, 512}) {
    Options options = f32_options();
    options.chunk_tokens = chunk;
    options.page_size = 7;
    expect_golden("models/gemma3", options, "chunk " + std::to_string(chunk));
  }
}

TEST(Golden, WindowOnly) { expect_golden("models/mistral_swa", f32_options(), ""); }
TEST(Golden, SinksAndExperts) { expect_golden("models/gpt_oss", f32_options(), ""); }
TEST(Golden, Latent) { expect_golden("models/deepseek_v3", f32_options(), ""); }

TEST(Golden, LatentByParts) {
  Options options = f32_options();
  options.deterministic = "run_to_run";
  options.chunk_tokens = 64;
  expect_golden("models/deepseek_v3", options, "run_to_run");
}

TEST(Golden, ReferenceRow) {
  Options options = f32_options();
  options.attention_backend = "reference";
  expect_golden("models/llama", options, "reference");
}

}  // namespace
}  // namespace quire::engine::testing
