// What an answer may be and how likely it was: guides, log-probabilities, and prompts that are scored and
// answered. Every number is compared with a second way to it, bit for bit.
#include <random>

#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

using Ids = std::vector<std::int32_t>;

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15ull;
  return state ^ state >> 29;
}

// Allows a part of the vocabulary that depends on all that came before: a mask that is late, for another
// request or asked in a wrong state shows in the tokens.
class HashGuide final : public Guide {
 public:
  // One id in `of` may come next; 1: every id; 0: the same, without a mask.
  explicit HashGuide(std::uint64_t of, std::int32_t ends_after = 1 << 30) : of_(of), left_(ends_after) {}
  bool mask(std::span<std::uint32_t> allowed) override {
    if (of_ == 0) return false;
    for (std::size_t word = 0; word < allowed.size(); ++word) {
      allowed[word] = 0;
      for (std::uint32_t bit = 0; bit < 32; ++bit)
        allowed[word] |= static_cast<std::uint32_t>(allows(word * 32 + bit)) << bit;
    }
    return true;
  }
  void accept(std::int32_t token) override {
    EXPECT_TRUE(allows(static_cast<std::uint64_t>(token))) << token << " after " << accepted.size();
    state_ = mix(state_, static_cast<std::uint64_t>(token) + 1);
    accepted.push_back(token);
    --left_;
  }
  bool ended() const override { return left_ <= 0; }
  Ids accepted;

 private:
  bool allows(std::uint64_t id) const { return of_ <= 1 || mix(state_, id) % of_ == 0; }
  std::uint64_t of_;
  std::uint64_t state_ = 7;
  std::int32_t left_;
};

// Gives up after so many tokens.
class BrokenGuide final : public Guide {
 public:
  explicit BrokenGuide(int after) : left_(after) {}
  bool mask(std::span<std::uint32_t> allowed) override {
    if (left_ > 0) return false;
    std::fill(allowed.begin(), allowed.end(), 0u);
    return true;
  }
  void accept(std::int32_t) override { --left_; }
  bool ended() const override { return false; }
  std::string_view problem() const override { return left_ > 0 ? "" : "a problem"; }

 private:
  int left_;
};

class GuideTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = read_golden("models/" + GetParam()).path;
    if (path_.empty()) FAIL() << "no golden data";
  }
  static std::vector<Request> requests(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    Ids root(40);
    for (std::int32_t& id : root) id = static_cast<std::int32_t>(random() % 250);
    for (std::size_t i = 0; i < count; ++i) {
      Ids prompt(root.begin(), root.begin() + 1 + static_cast<std::ptrdiff_t>(random() % root.size()));
      for (std::size_t more = random() % 30; more > 0; --more)
        prompt.push_back(static_cast<std::int32_t>(random() % 250));
      Request request = greedy_request(prompt, 2 + static_cast<std::int32_t>(random() % 20));
      if (i % 2 == 1) {
        request.sampling.temperature = 0.9f;
        request.sampling.repetition_penalty = 1.2f;
        request.sampling.presence_penalty = 0.2f;
        request.sampling.logit_bias = {{7, 1.5f}, {9, -2.0f}};
        request.sampling.top_p = 0.95f;
        request.sampling.seed = 5;
        request.sequence_index = i;
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }
  std::string path_;
};

TEST_P(GuideTest, LogprobsAreThoseOfScoringTheAnswer) {
  std::vector<Request> asked = requests(3, 10);
  for (std::size_t i = 0; i < asked.size(); ++i) asked[i].logprobs = static_cast<std::int32_t>(i % 6) - 1;
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  const std::vector<Answer> answers = run_all(*engine, asked);
  expect_same_tokens(run_all(*open_engine(path_, tiny_options()), requests(3, 10)), answers, "without");
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::int32_t top = asked[i].logprobs;
    ASSERT_EQ(answers[i].logprobs.size(), top < 0 ? 0u : answers[i].tokens.size());
    if (top < 0) continue;
    Ids all = asked[i].prompt;
    all.insert(all.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    const Answer scored = run_all(*engine, {score_request(all, top)})[0];
    ASSERT_EQ(scored.scored.size(), all.size());
    for (std::size_t t = 0; t < answers[i].tokens.size(); ++t) {
      const Scored& expected = scored.scored[asked[i].prompt.size() - 1 + t];
      EXPECT_EQ(answers[i].logprobs[t].logprob, expected.logprob) << "request " << i << " token " << t;
      EXPECT_EQ(answers[i].logprobs[t].top, expected.top) << "request " << i << " token " << t;
    }
  }
}

TEST_P(GuideTest, AScoredPromptIsAnsweredToo) {
  const std::vector<Request> plain = requests(4, 8);
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  std::vector<Request> scores;
  for (const Request& request : plain) scores.push_back(score_request(request.prompt, 3));
  const std::vector<Answer> expected_scores = run_all(*engine, scores);
  const std::vector<Answer> expected = run_all(*engine, plain);
  struct Variant {
    std::string name;
    void (*change)(Options&);
  };
  const Variant variants[] = {
      {"cold", [](Options& o) { o.prefix_cache = "off"; }},
      {"chunk 5, page 7", [](Options& o) { o.chunk_tokens = 5, o.page_size = 7; }},
      {"no overlap, whole", [](Options& o) { o.overlap = false, o.chunk_tokens = 256; }},
  };
  for (const Variant& variant : variants) {
    Options changed = tiny_options();
    variant.change(changed);
    std::unique_ptr<Engine> both = open_engine(path_, changed);
    ASSERT_NE(both, nullptr);
    std::vector<Request> asked = plain;
    for (Request& request : asked) request.score = true, request.score_top = 3, request.logprobs = 0;
    for (int round = 0; round < 2; ++round) {
      const std::vector<Answer> answers = run_all(*both, asked);
      expect_same_tokens(answers, expected, variant.name);
      for (std::size_t i = 0; i < answers.size(); ++i) {
        ASSERT_EQ(answers[i].scored.size(), plain[i].prompt.size()) << variant.name;
        EXPECT_TRUE(std::isnan(answers[i].scored.back().logprob)) << variant.name;
        for (std::size_t t = 0; t < answers[i].scored.size(); ++t) {
          EXPECT_EQ(answers[i].scored[t].top, expected_scores[i].scored[t].top) << variant.name;
          if (t + 1 == answers[i].scored.size()) continue;
          EXPECT_EQ(answers[i].scored[t].logprob, expected_scores[i].scored[t].logprob) << variant.name;
        }
      }
    }
  }
}

TEST_P(GuideTest, AGuideThatAllowsEverythingChangesNothing) {
  const std::vector<Request> plain = requests(5, 12);
  const std::vector<Answer> expected = run_all(*open_engine(path_, tiny_options()), plain);
  for (const bool overlap : {true, false}) {
    Options changed = tiny_options();
    changed.overlap = overlap;
    std::unique_ptr<Engine> engine = open_engine(path_, changed);
    ASSERT_NE(engine, nullptr);
    std::vector<Request> guided = plain;
    std::vector<std::shared_ptr<HashGuide>> guides;
    for (std::size_t i = 0; i < guided.size(); ++i) {
      // No mask, a mask of all, no guide.
      guides.push_back(i % 3 == 2 ? nullptr : std::make_shared<HashGuide>(i % 3));
      guided[i].guide = guides[i];
    }
    const std::vector<Answer> answers = run_all(*engine, guided);
    expect_same_tokens(answers, expected, overlap ? "overlap" : "no overlap");
    for (std::size_t i = 0; i < guided.size(); ++i) {
      if (guides[i] == nullptr) continue;
      EXPECT_EQ(guides[i]->accepted, answers[i].tokens) << i;
    }
  }
}

// Among others that are not guided, retracted or not, from the cache or not: what it may be decides, and
// nothing else.
TEST_P(GuideTest, GuidedAnswersDependOnNothingElse) {
  const std::vector<Request> plain = requests(6, 14);
  const auto guided = [&plain] {
    std::vector<Request> made = plain;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (i % 3 == 2) continue;
      made[i].guide = std::make_shared<HashGuide>(i % 2 == 0 ? 3 : 40);
      made[i].logprobs = i % 4 == 0 ? 2 : -1;
    }
    return made;
  };
  std::vector<Answer> expected;
  {
    Options alone = tiny_options();
    alone.max_running = 1;
    alone.prefix_cache = "off";
    std::unique_ptr<Engine> engine = open_engine(path_, alone);
    ASSERT_NE(engine, nullptr);
    expected = run_all(*engine, guided());
  }
  struct Variant {
    std::string name;
    void (*change)(Options&);
  };
  const Variant variants[] = {
      {"as it comes", [](Options&) {}},
      {"cold", [](Options& o) { o.prefix_cache = "off"; }},
      {"no overlap", [](Options& o) { o.overlap = false; }},
      {"chunk 3, page 1", [](Options& o) { o.chunk_tokens = 3, o.page_size = 1; }},
      {"little memory", [](Options& o) { o.kv_memory_bytes = 90 * 2048, o.page_size = 4; }},
  };
  std::int64_t retractions = 0;
  for (const Variant& variant : variants) {
    Options changed = tiny_options();
    variant.change(changed);
    std::unique_ptr<Engine> engine = open_engine(path_, changed);
    ASSERT_NE(engine, nullptr) << variant.name;
    for (int round = 0; round < 2; ++round)
      expect_same_tokens(run_all(*engine, guided()), expected, variant.name);
    retractions += engine->stats().retractions;
  }
  EXPECT_GT(retractions, 0);
}

TEST_P(GuideTest, AGuideEndsTheAnswer) {
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  std::vector<Request> asked(3, greedy_request({1, 2, 3}, 30));
  asked[0].guide = std::make_shared<HashGuide>(2, 4);
  asked[1].guide = std::make_shared<HashGuide>(~0ull);  // allows nothing
  const std::vector<Answer> answers = run_all(*engine, asked);
  EXPECT_EQ(answers[0].tokens.size(), 4u);
  EXPECT_EQ(answers[0].last.finish, Finish::stop);
  EXPECT_EQ(answers[1].last.finish, Finish::failed);
  EXPECT_NE(answers[1].last.error.find("guide allows no token"), std::string::npos) << answers[1].last.error;
  EXPECT_EQ(answers[2].tokens.size(), 30u);
  EXPECT_EQ(answers[2].last.finish, Finish::length);
}

TEST_P(GuideTest, AGuidesProblemIsToldApartFromItsDeadEnd) {
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  std::vector<Request> asked(3, greedy_request({1, 2, 3}, 8));
  asked[0].guide = std::make_shared<BrokenGuide>(3);
  asked[1].guide = std::make_shared<HashGuide>(~0ull);  // allows nothing
  const std::vector<Answer> answers = run_all(*engine, asked);
  EXPECT_EQ(answers[0].tokens.size(), 3u);
  EXPECT_EQ(answers[0].last.finish, Finish::failed);
  EXPECT_EQ(answers[0].last.guide_problem, "a problem");
  EXPECT_NE(answers[0].last.error.find("gave up"), std::string::npos) << answers[0].last.error;
  EXPECT_EQ(answers[1].last.finish, Finish::failed);
  EXPECT_EQ(answers[1].last.guide_problem, "");
  EXPECT_EQ(answers[2].last.guide_problem, "");
}

TEST_P(GuideTest, WhatCannotBeIsRefusedWithTheNumbers) {
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  Request request = greedy_request({1, 2, 3}, 4);
  request.logprobs = 21;
  EXPECT_NE(engine->submit(request).error().message.find("0 to 20"), std::string::npos);
  request.logprobs = -2;
  EXPECT_FALSE(engine->submit(request).ok());
  request.logprobs = -1;
  request.answer = false;
  EXPECT_NE(engine->submit(request).error().message.find("neither"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, GuideTest, ::testing::Values("llama", "gemma3"));

}  // namespace
}  // namespace quire::engine::testing
