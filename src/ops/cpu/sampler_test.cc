#include "ops/cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ops/cpu/testing.h"
#include "ops/philox.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;
using testing::levels;
using testing::random_floats;
using testing::Rig;
using testing::view;

TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsAreUniformAndKeyedByEveryPart) {
  int cells[64] = {};
  constexpr int kDraws = 64000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_draw(7, 3, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++cells[static_cast<int>(u * 64)];
  }
  double chi = 0.0;
  for (int count : cells) chi += std::pow(count - kDraws / 64.0, 2) / (kDraws / 64.0);
  EXPECT_LT(chi, 120.0) << "63 degrees of freedom";
  const double base = uniform_draw(1, 2, 3);
  for (double other : {uniform_draw(2, 2, 3), uniform_draw(1, 3, 3), uniform_draw(1, 2, 4),
                       uniform_draw(1ull << 32, 2, 3), uniform_draw(1, 2ull << 32, 3)}) {
    EXPECT_NE(base, other);
  }
}

// One row with memory of its own.
struct Sampler {
  explicit Sampler(std::int32_t vocab) : vocab_(vocab) {
    counts.assign(static_cast<std::size_t>(vocab), 0);
    scaled.resize(counts.size());
    weight.resize(counts.size());
    ids.resize(counts.size());
  }
  std::int32_t operator()(std::vector<float>& logits, const SamplingParams& params,
                          const std::vector<LogitBias>& bias = {},
                          const std::vector<std::int32_t>& tokens = {}, std::int32_t prompt = 0) {
    SampleRow row{logits.data(), vocab_,        &params,
                  bias.data(),   tokens.data(), static_cast<std::int32_t>(tokens.size()),
                  prompt};
    return sample_row(row, math, {counts.data(), scaled.data(), weight.data(), ids.data()});
  }
  std::int32_t vocab_;
  std::vector<std::int32_t> counts, ids;
  std::vector<float> scaled, weight;
  const RowMath& math = row_math(platform::cpu::best_isa());
};

// The definition, by sorting: the kept tokens with their probabilities.
std::map<int, double> naive_distribution(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  const auto weight = [&](int id) {
    return std::exp(
        (double{logits[static_cast<std::size_t>(id)]} - logits[static_cast<std::size_t>(order[0])]) /
        p.temperature);
  };
  if (p.top_k > 0 && p.top_k < static_cast<int>(order.size()))
    order.resize(static_cast<std::size_t>(p.top_k));
  double total = 0.0, reached = 0.0;
  for (int id : order) total += weight(id);
  std::map<int, double> kept;
  for (int id : order) {
    if (p.top_p < 1.0f && !kept.empty() && reached >= double{p.top_p} * total) break;
    reached += weight(id);
    kept[id] = weight(id);
  }
  double sum = 0.0;
  for (auto it = kept.begin(); it != kept.end();) it = it->second < p.min_p ? kept.erase(it) : std::next(it);
  for (auto& [id, w] : kept) sum += w;
  for (auto& [id, w] : kept) w /= sum;
  return kept;
}

TEST(Sampling, TheDistributionIsThatOfTheFilters) {
  const std::int32_t vocab = 40;
  Sampler sampler(vocab);
  std::vector<float> logits = random_floats(vocab, 3, 2.0f);
  logits[5] = logits[9] = logits[30] = 2.0f;  // ties at borders
  std::vector<SamplingParams> cases;
  for (float temperature : {0.5f, 1.0f, 2.5f}) {
    for (std::int32_t top_k : {0, 1, 3, 7, 39, 40, 100}) {
      for (float top_p : {1.0f, 0.9f, 0.5f, 0.01f, 0.0f}) {
        for (float min_p : {0.0f, 0.1f}) cases.push_back({temperature, top_k, top_p, min_p});
      }
    }
  }
  constexpr int kDraws = 4000;
  for (SamplingParams& p : cases) {
    const std::map<int, double> expected = naive_distribution(logits, p);
    std::map<int, int> seen;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> copy = logits;
      p.seed = 11;
      p.sequence_index = static_cast<std::uint64_t>(i);
      ++seen[sampler(copy, p)];
    }
    double chi = 0.0;
    int cells = 0;
    for (const auto& [id, count] : seen)
      ASSERT_TRUE(expected.count(id)) << "token " << id << " was filtered out";
    for (const auto& [id, probability] : expected) {
      if (probability * kDraws < 5.0) continue;
      chi += std::pow(seen[id] - probability * kDraws, 2) / (probability * kDraws);
      ++cells;
    }
    // Far beyond the 1e-6 quantile for every number of cells: the draws are fixed by their seeds.
    EXPECT_LT(chi, cells + 6.0 * std::sqrt(2.0 * cells) + 12.0)
        << "temperature " << p.temperature << " top_k " << p.top_k << " top_p " << p.top_p << " min_p "
        << p.min_p;
  }
}

TEST(Sampling, TopKTiesGoToTheLowerId) {
  Sampler sampler(6);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits = {1.0f, 2.0f, 1.0f, 2.0f, 2.0f, 1.0f};
    SamplingParams p{1.0f, 2};
    p.seed = static_cast<std::uint64_t>(i);
    const std::int32_t token = sampler(logits, p);
    EXPECT_TRUE(token == 1 || token == 3) << token;
  }
}

TEST(Sampling, GreedyTakesTheLowestOfEqualsAndIgnoresSeeds) {
  Sampler sampler(1000);
  std::vector<float> logits = random_floats(1000, 4);
  logits[37] = logits[812] = logits[900] = 9.0f;
  for (std::uint64_t seed : {1, 2, 3}) {
    SamplingParams p;
    p.seed = seed;
    EXPECT_EQ(sampler(logits, p), 37);
  }
}

TEST(Sampling, PenaltiesAndBiasActByTheirFormulas) {
  const std::int32_t vocab = 20;
  Sampler sampler(vocab);
  const std::vector<float> logits = random_floats(vocab, 8, 2.0f);
  const std::vector<std::int32_t> tokens = {3, 3, 5, 7, 19, 5, 3, 11, 5, 5};
  const std::int32_t prompt = 4;
  for (int which = 0; which < 8; ++which) {
    SamplingParams p;
    p.repetition_penalty = which & 1 ? 1.3f : 1.0f;
    p.frequency_penalty = which & 2 ? 0.4f : 0.0f;
    p.presence_penalty = which & 4 ? -0.7f : 0.0f;
    const std::vector<LogitBias> bias = {{2, 1.5f}, {5, -2.0f}, {19, 0.25f}};
    p.bias_count = 3;
    std::vector<float> changed = logits;
    sampler(changed, p, bias, tokens, prompt);
    for (int id = 0; id < vocab; ++id) {
      double expected = logits[static_cast<std::size_t>(id)];
      const bool seen = std::count(tokens.begin(), tokens.end(), id) > 0;
      const auto outputs = std::count(tokens.begin() + prompt, tokens.end(), id);
      if (seen) expected = expected > 0 ? expected / p.repetition_penalty : expected * p.repetition_penalty;
      expected -=
          static_cast<double>(outputs) * p.frequency_penalty + (outputs > 0 ? p.presence_penalty : 0.0);
      for (const LogitBias& b : bias) expected += b.token == id ? b.value : 0.0;
      EXPECT_NEAR(changed[static_cast<std::size_t>(id)], expected, 1e-6)
          << "token " << id << " case " << which;
    }
    EXPECT_EQ(std::count(sampler.counts.begin(), sampler.counts.end(), 0), vocab) << "counts go back to zero";
  }
}

TEST(Sampling, ExtremeLogitsGiveALegalToken) {
  const float inf = INFINITY;
  Sampler sampler(4);
  for (float temperature : {0.0f, 1e-30f, 1.0f, 1e30f}) {
    for (std::vector<float> logits :
         {std::vector<float>{-inf, -inf, 3.0f, -inf}, {-1e38f, -inf, 3e38f, -1e38f}}) {
      for (float top_p : {1.0f, 0.5f}) {
        SamplingParams p{temperature, 3, top_p};
        const std::int32_t token = sampler(logits, p);
        if (temperature < 1e29f || std::isinf(logits[0]))
          EXPECT_EQ(token, 2);
        else
          EXPECT_TRUE(token == 0 || token == 2 || token == 3) << token;
      }
    }
  }
}

TEST(Sampling, LogitsWithoutADistributionGiveNoToken) {
  const float inf = INFINITY;
  Sampler sampler(5);
  for (float temperature : {0.0f, 1.0f}) {
    for (const std::vector<float>& logits : {std::vector<float>{NAN, NAN, NAN, NAN, NAN},
                                             {1.0f, 2.0f, 0.0f, 1.0f, -NAN},
                                             {0.0f, inf, 0.0f, 0.0f, 0.0f},
                                             {-inf, -inf, -inf, -inf, -inf},
                                             {NAN, 1.0f, 1.0f, 1.0f, 1.0f}}) {
      SamplingParams p{temperature};
      std::vector<float> copy = logits;
      EXPECT_EQ(sampler(copy, p), -1);
    }
  }
}

// A mask is what -inf in the logits of the others would be, after penalties and bias.
TEST(Sampling, AMaskForbidsTheOthers) {
  constexpr std::int32_t kVocab = 77;  // the last word is not full
  Sampler sampler(kVocab);
  const std::vector<float> logits = random_floats(kVocab, 6, 2.0f);
  const std::vector<std::int32_t> tokens = {3, 5, 3, 70};
  const std::vector<LogitBias> bias = {{76, 3.0f}, {1, 4.0f}};
  const std::vector<std::uint32_t> mask = {0x8421f00fu, 0x00000000u, 0x00001041u};
  for (int i = 0; i < 300; ++i) {
    SamplingParams p{i % 3 == 0 ? 0.0f : 0.7f, i % 5 == 0 ? 4 : 0, i % 2 == 0 ? 1.0f : 0.8f};
    p.repetition_penalty = 1.2f;
    p.bias_count = 2;
    p.seed = static_cast<std::uint64_t>(i);
    std::vector<float> masked = logits;
    SampleRow row{masked.data(), kVocab, &p, bias.data(), tokens.data(), 4, 1, mask.data()};
    const SampleScratch scratch{sampler.counts.data(), sampler.scaled.data(), sampler.weight.data(),
                                sampler.ids.data()};
    const std::int32_t token = sample_row(row, sampler.math, scratch);
    std::vector<float> forbidden = logits;
    for (std::int32_t id = 0; id < kVocab; ++id) {
      if ((mask[static_cast<std::size_t>(id / 32)] >> id % 32 & 1u) == 0)
        forbidden[static_cast<std::size_t>(id)] = -INFINITY;
    }
    EXPECT_EQ(token, sampler(forbidden, p, bias, tokens, 1));
    EXPECT_EQ(masked, forbidden) << "what is left is the same";
  }
  const std::vector<std::uint32_t> none = {0, 0, ~0u << 13};  // bits beyond the vocabulary are nobody's
  std::vector<float> copy = logits;
  const SamplingParams greedy;
  SampleRow row{copy.data(), kVocab, &greedy, nullptr, nullptr, 0, 0, none.data()};
  EXPECT_EQ(sample_row(row, sampler.math, {sampler.counts.data()}), -1);
}

// Through the op: slots, padding, history, any order of rows and number of threads.
TEST(SampleOp, WritesTokensWhereTheNextStepReadsThem) {
  const std::int64_t vocab = 500;
  std::vector<std::int32_t> expected;
  for (int threads : {1, 2, 3}) {
    Rig rig(platform::cpu::best_isa(), threads, vocab);
    std::vector<std::int32_t> length = {0, 3, 5, 0, 2}, last(5, -1), prompt = {0, 4, 6, 0, 2},
                              history(5 * 16, 1);
    std::vector<SamplingParams> params(5);
    for (std::size_t s = 1; s < 5; ++s) params[s] = {1.0f, 50, 0.95f, 0.0f, 1.1f, 0.1f, 0.1f, 42, s, 0};
    const std::vector<StepRow> rows = {{2, 1, 0, -1}, {0, 1, 1, -1}, {1, 1, 2, -1}, {4, 3, 3, 0}};
    const std::vector<std::int32_t> index = {0, -1, 2, 3, 1};
    std::vector<float> logits = random_floats(5 * vocab, 12);
    const std::vector<float> before = logits;
    const std::vector<std::int32_t> mask_row = {-1, 0, -1, 1, -1};
    std::vector<std::uint32_t> masks(2 * static_cast<std::size_t>(mask_words(vocab)), 0);
    masks[static_cast<std::size_t>(mask_words(vocab)) + 12] = 1u << 9;  // only token 393
    std::vector<std::int32_t> out(5, -9);
    Sample args;
    args.state = {length.data(), last.data(), prompt.data(), history.data(), 16};
    args.logits = view(logits, 5, vocab);
    args.row_index = index.data();
    args.step_rows = rows.data();
    args.params = params.data();
    args.out_token = out.data();
    args.mask_row = mask_row.data();
    args.masks = masks.data();
    rig.ops->sample(args, *rig.stream);
    rig.stream->synchronize();
    EXPECT_EQ(last[2], out[0]);
    EXPECT_EQ(last[1], out[2]);
    EXPECT_EQ(last[4], out[3]);
    EXPECT_EQ(last[0], -1) << "the padding slot never moves";
    EXPECT_EQ(last[3], -1);
    EXPECT_EQ(history[2 * 16 + 6], out[0]);
    EXPECT_EQ(history[1 * 16 + 4], out[2]);
    EXPECT_EQ(history[4 * 16 + 5], out[3]);
    EXPECT_EQ(out[3], 393) << "the mask of row 3";
    EXPECT_EQ(logits, before) << "the logits stay";
    if (expected.empty()) expected = out;
    EXPECT_EQ(out, expected);
  }
}

TEST(ScoreOp, LogSoftmaxArgmaxAndTop) {
  for (Isa isa : levels()) {
    const std::int64_t rows = 7, vocab = 1003;
    Rig rig(isa, 2, vocab);
    std::vector<float> logits = random_floats(rows * vocab, 21, 6.0f);
    logits[10] = logits[500] = logits[501] = 40.0f;
    std::vector<std::int32_t> target = {5, -1, 1002, 0, 7, 8, 9}, best(7), ids(7 * 4);
    std::vector<float> logprob(7), top(7 * 4);
    rig.ops->score(
        {view(logits, rows, vocab), target.data(), logprob.data(), best.data(), 4, ids.data(), top.data()},
        *rig.stream);
    rig.stream->synchronize();
    EXPECT_EQ((std::vector<std::int32_t>(ids.begin(), ids.begin() + 3)),
              (std::vector<std::int32_t>{10, 500, 501}));
    for (std::size_t r = 0; r < 7; ++r) {
      const float* x = logits.data() + r * vocab;
      double sum = 0.0;
      for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(double{x[i]} - 40.0);
      const double total = 40.0 + std::log(sum);
      EXPECT_EQ(best[r], std::max_element(x, x + vocab) - x);
      EXPECT_EQ(ids[r * 4], best[r]);
      if (target[r] < 0)
        EXPECT_TRUE(std::isnan(logprob[r]));
      else
        EXPECT_NEAR(logprob[r], x[target[r]] - total, 4e-6 * std::fabs(x[target[r]] - total) + 1e-6);
      std::vector<float> sorted(x, x + vocab);
      std::sort(sorted.rbegin(), sorted.rend());
      for (std::size_t k = 0; k < 4; ++k) EXPECT_NEAR(top[r * 4 + k], sorted[k] - total, 1e-5);
    }
  }
}

}  // namespace
}  // namespace quire::ops::cpu
