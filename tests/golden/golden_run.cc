#include "golden_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace quire::golden {

bool is_moe(const std::string& model) { return model == "gpt_oss" || model == "deepseek_v3"; }

std::unique_ptr<Engine> open_or_fail(const std::string& path, const Options& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::open(path, options);
  EXPECT_TRUE(engine.ok()) << path << ": " << engine.error().message;
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// All cases at once: scoring requests and greedy answers run as one continuous batch of different lengths.
Answers compute(Engine& engine, const Golden& golden, bool greedy) {
  Answers answers;
  answers.scored.resize(golden.cases.size());
  answers.greedy.resize(golden.cases.size());
  std::map<RequestId, std::size_t> score_ids, greedy_ids;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    Request request;
    request.prompt = golden.cases[i].tokens;
    if (greedy) {
      request.max_tokens = static_cast<std::int32_t>(golden.cases[i].greedy.size());
      const Result<RequestId> id = engine.submit(request);
      EXPECT_TRUE(id.ok()) << id.error().message;
      if (id.ok()) greedy_ids[id.value()] = i;
    }
    request.score = true;
    request.answer = false;
    const Result<RequestId> id = engine.submit(request);
    EXPECT_TRUE(id.ok()) << id.error().message;
    if (id.ok()) score_ids[id.value()] = i;
  }
  std::vector<Output> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = engine.step(outputs);
    for (const Output& output : outputs) {
      if (const auto found = score_ids.find(output.id); found != score_ids.end()) {
        auto& list = answers.scored[found->second];
        list.insert(list.end(), output.scored.begin(), output.scored.end());
      } else if (const auto answer = greedy_ids.find(output.id); answer != greedy_ids.end()) {
        auto& list = answers.greedy[answer->second];
        list.insert(list.end(), output.tokens.begin(), output.tokens.end());
      }
    }
  }
  EXPECT_EQ(engine.audit(), std::vector<std::string>());
  return answers;
}

void expect_float32(const Golden& golden, const Answers& answers, const std::string& what) {
  double worst = 0;
  int flips = 0;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    const Case& one = golden.cases[i];
    ASSERT_EQ(answers.scored[i].size(), one.tokens.size()) << what;
    for (std::size_t t = 0; t < one.tokens.size(); ++t) {
      if (t < one.logprobs.size()) {
        const double error = std::abs(double{answers.scored[i][t].logprob} - double{one.logprobs[t]});
        worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
      }
      if (one.margin[t] > 5e-3f * golden.logit_std && answers.scored[i][t].argmax != one.argmax[t]) ++flips;
    }
    if (!answers.greedy[i].empty()) {
      EXPECT_EQ(answers.greedy[i], one.greedy) << what << " case " << i;
    }
  }
  EXPECT_LE(worst, 2e-4) << what;
  EXPECT_EQ(flips, 0) << what;
}

void expect_gate(const Golden& golden, const Answers& answers, const Gate& gate, bool moe,
                 const std::string& what) {
  std::vector<double> ours, theirs;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    const Case& one = golden.cases[i];
    ASSERT_EQ(answers.scored[i].size(), one.tokens.size()) << what;
    for (std::size_t t = 0; t < one.logprobs.size(); ++t) {
      ASSERT_TRUE(std::isfinite(answers.scored[i][t].logprob)) << what;
      ours.push_back(std::abs(answers.scored[i][t].logprob - one.logprobs[t]));
      theirs.push_back(std::abs(one.bf16_logprobs[t] - one.logprobs[t]));
    }
  }
  const Errors got = errors_of(ours), reference = errors_of(theirs);
  EXPECT_LE(got.mean, gate.mean_times * reference.mean + gate.mean_plus) << what;
  if (gate.quantile_times > 0) {
    EXPECT_LE(got.quantile90, gate.quantile_times * reference.quantile90 + gate.quantile_plus) << what;
  }
  if (gate.largest_times > 0 && !moe) {
    EXPECT_LE(got.largest, gate.largest_times * reference.largest + gate.largest_plus) << what;
  }
}

}  // namespace quire::golden
