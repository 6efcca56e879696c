// Sampling and scoring against the CPU's: the same seeds must give the same tokens.
#include <map>

#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::expect_close;
using testing::Host;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;

// One row of logits per slot, slots 1.., with everything that sample reads on both sides.
struct Batch {
  std::int64_t vocab = 0;
  std::int64_t history_stride = 64;
  std::vector<float> logits;
  std::vector<SamplingParams> params;
  std::vector<LogitBias> bias;
  std::vector<std::int32_t> length, last, prompt, history, row_index;
  std::vector<StepRow> rows;
  std::vector<std::int32_t> mask_row;  // empty: no masks
  std::vector<std::uint32_t> masks;

  Batch(std::int64_t vocab_, std::int32_t count) : vocab(vocab_) {
    const auto slots = static_cast<std::size_t>(count) + 1;
    params.resize(slots);
    length.assign(slots, 0);
    last = prompt = length;
    history.assign(slots * static_cast<std::size_t>(history_stride), -1);
    for (std::int32_t r = 0; r < count; ++r) {
      rows.push_back({r + 1, 1, r, -1});
      row_index.push_back(r);
    }
  }
  std::int32_t count() const { return static_cast<std::int32_t>(rows.size()); }
};

struct Outcome {
  std::vector<std::int32_t> tokens, last, history;
};

Outcome on_host(Rig& rig, Batch batch) {
  Outcome out;
  out.tokens.assign(batch.row_index.size(), -9);
  Sample s;
  s.state = {batch.length.data(), batch.last.data(), batch.prompt.data(), batch.history.data(),
             batch.history_stride};
  s.logits = TensorView::matrix(batch.logits.data(), DType::f32, batch.count(), batch.vocab);
  s.row_index = batch.row_index.data();
  s.step_rows = batch.rows.data();
  s.params = batch.params.data();
  s.bias = batch.bias.empty() ? nullptr : batch.bias.data();
  s.out_token = out.tokens.data();
  if (!batch.mask_row.empty()) s.mask_row = batch.mask_row.data(), s.masks = batch.masks.data();
  rig.host_ops->sample(s, *rig.host_stream);
  rig.host_stream->synchronize();
  out.last = batch.last;
  out.history = batch.history;
  return out;
}

Outcome on_device(Rig& rig, const Batch& batch, DType type = DType::f32) {
  std::int32_t* last = rig.upload(batch.last);
  std::int32_t* history = rig.upload(batch.history);
  std::int32_t* tokens = rig.upload(std::vector<std::int32_t>(batch.row_index.size(), -9));
  Host logits;
  logits.values = batch.logits;
  logits.view = TensorView::matrix(logits.values.data(), DType::f32, batch.count(), batch.vocab);
  Sample s;
  s.state = {rig.upload(batch.length), last, rig.upload(batch.prompt), history, batch.history_stride};
  s.logits = rig.mirror(logits, type);
  s.row_index = rig.upload(batch.row_index);
  s.step_rows = rig.upload(batch.rows);
  s.params = rig.upload(batch.params);
  s.bias = batch.bias.empty() ? nullptr : rig.upload(batch.bias);
  s.out_token = tokens;
  if (!batch.mask_row.empty()) s.mask_row = rig.upload(batch.mask_row), s.masks = rig.upload(batch.masks);
  rig.ops->sample(s, *rig.stream);
  Outcome out{rig.download(tokens, batch.row_index.size()), rig.download(last, batch.last.size()),
              rig.download(history, batch.history.size())};
  rig.kept.clear();
  return out;
}

int differences(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST(SampleDevice, TheTokensOfEveryFilterAreTheCpus) {
  Rig rig;
  constexpr std::int32_t kRows = 1500;
  const std::int64_t vocab = 40;
  std::vector<float> logits = random_floats(vocab, 3, 2.0f);
  logits[5] = logits[9] = logits[30] = 2.0f;  // ties at borders
  logits[12] = -INFINITY;
  int cases = 0;
  for (float temperature : {0.0f, 0.5f, 2.5f}) {
    for (std::int32_t top_k : {0, 1, 3, 7, 39, 100}) {
      for (float top_p : {1.0f, 0.9f, 0.5f, 0.0f}) {
        for (float min_p : {0.0f, 0.1f}) {
          if (temperature == 0.0f && top_k + min_p > 0.0f) continue;
          Batch batch(vocab, kRows);
          for (std::int32_t r = 0; r < kRows; ++r) {
            batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
            SamplingParams& p = batch.params[static_cast<std::size_t>(r) + 1];
            p.temperature = temperature;
            p.top_k = top_k;
            p.top_p = top_p;
            p.min_p = min_p;
            p.seed = 11;
            p.sequence_index = static_cast<std::uint64_t>(r);
          }
          // A draw within one rounding of a border may fall to either side.
          EXPECT_LE(differences(on_device(rig, batch).tokens, on_host(rig, batch).tokens), 1)
              << "temperature " << temperature << " top_k " << top_k << " top_p " << top_p << " min_p "
              << min_p;
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 90);
}

TEST(SampleDevice, DrawsFollowTheDistribution) {
  Rig rig;
  constexpr std::int32_t kRows = 20000;
  const std::int64_t vocab = 50;
  const std::vector<float> logits = random_floats(vocab, 8, 1.5f);
  Batch batch(vocab, kRows);
  for (std::int32_t r = 0; r < kRows; ++r) {
    batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
    batch.params[static_cast<std::size_t>(r) + 1].temperature = 1.0f;
    batch.params[static_cast<std::size_t>(r) + 1].seed = static_cast<std::uint64_t>(r) * 77;
  }
  std::map<std::int32_t, int> seen;
  for (std::int32_t token : on_device(rig, batch).tokens) ++seen[token];
  double total = 0.0, chi = 0.0;
  for (float x : logits) total += std::exp(double{x});
  for (std::int32_t i = 0; i < vocab; ++i) {
    const double expected = kRows * std::exp(double{logits[static_cast<std::size_t>(i)]}) / total;
    chi += std::pow(seen[i] - expected, 2) / expected;
  }
  EXPECT_LT(chi, 49 + 6.0 * std::sqrt(98.0)) << "49 degrees of freedom";
}

// Large vocabularies, rows that want different things, peaked and flat logits, every kind of penalty.
TEST(SampleDevice, MixedBatchesOverRealVocabulariesAreTheCpus) {
  for (std::int64_t vocab : {1000, 32003, 128256, 262144}) {
    Rig rig(vocab);
    constexpr std::int32_t kRows = 48;
    Batch batch(vocab, kRows);
    std::mt19937 random(static_cast<unsigned>(vocab));
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int32_t>(random() % static_cast<unsigned>(n));
    };
    batch.bias.resize(static_cast<std::size_t>(kRows + 1) * kMaxLogitBias);
    for (std::int32_t r = 0; r < kRows; ++r) {
      const auto slot = static_cast<std::size_t>(r) + 1;
      const float spread = r % 4 == 0 ? 0.0f : r % 4 == 1 ? 0.3f : r % 4 == 2 ? 3.0f : 12.0f;
      const std::vector<float> row = random_floats(vocab, static_cast<unsigned>(r), spread);
      batch.logits.insert(batch.logits.end(), row.begin(), row.end());
      SamplingParams& p = batch.params[slot];
      p.temperature = r % 5 == 0 ? 0.0f : 0.3f + 0.2f * static_cast<float>(below(8));
      p.top_k = r % 3 == 0 ? 0 : 1 + below(r % 2 == 0 ? 50 : vocab);
      p.top_p = r % 2 == 0 ? 1.0f : 0.05f * static_cast<float>(below(20));
      p.min_p = r % 7 == 0 ? 0.05f : 0.0f;
      p.seed = random();
      p.sequence_index = random();
      if (r % 3 == 1) p.repetition_penalty = 1.3f;
      if (r % 4 == 1) p.frequency_penalty = 0.4f;
      if (r % 6 == 1) p.presence_penalty = 0.7f;
      batch.prompt[slot] = 5 + below(10);
      batch.length[slot] = batch.prompt[slot] + below(40);
      for (std::int32_t i = 0; i <= batch.length[slot]; ++i)
        batch.history[slot * 64 + static_cast<std::size_t>(i)] = below(2) == 0 ? below(20) : below(vocab);
      p.bias_count = r % 5 == 1 ? 30 : 0;
      for (std::int32_t i = 0; i < p.bias_count; ++i)
        batch.bias[slot * kMaxLogitBias + static_cast<std::size_t>(i)] = {
            below(3) == 0 ? 7 : below(vocab), static_cast<float>(below(9)) - 4.0f};
    }
    batch.row_index[9] = -1;  // padding
    // Every third row has a mask: about a quarter of the vocabulary, the last one nothing.
    const auto words = static_cast<std::size_t>(mask_words(vocab));
    for (std::int32_t r = 0; r < kRows; ++r) {
      const bool masked = r % 3 == 2;
      batch.mask_row.push_back(masked ? r / 3 : -1);
      for (std::size_t w = 0; masked && w < words; ++w)
        batch.masks.push_back(r == kRows - 1 ? 0u : static_cast<std::uint32_t>(random() & random()));
    }
    const Outcome host = on_host(rig, batch), device = on_device(rig, batch);
    EXPECT_LE(differences(device.tokens, host.tokens), 1) << vocab;
    EXPECT_EQ(device.tokens.back(), -1) << "nothing is allowed";
    for (std::size_t r = 2; r + 1 < static_cast<std::size_t>(kRows); r += 3) {
      const auto token = static_cast<std::size_t>(device.tokens[r]);
      EXPECT_NE(batch.masks[r / 3 * words + token / 32] >> token % 32 & 1u, 0u) << "row " << r;
    }
    if (differences(device.tokens, host.tokens) == 0) {
      EXPECT_EQ(device.last, host.last);
      EXPECT_EQ(device.history, host.history);
    }
    EXPECT_EQ(on_device(rig, batch).tokens, device.tokens) << "equal calls";
  }
}

TEST(SampleDevice, RowsWithoutADistributionSaySo) {
  Rig rig;
  Batch batch(200, 5);
  batch.logits = random_floats(5 * 200, 4);
  batch.logits[17] = NAN;
  batch.logits[200 + 199] = INFINITY;
  for (int i = 0; i < 200; ++i) batch.logits[static_cast<std::size_t>(400 + i)] = -INFINITY;
  batch.logits[600 + 3] = -INFINITY;
  for (SamplingParams& p : batch.params) p.temperature = 1.0f;
  const Outcome host = on_host(rig, batch), device = on_device(rig, batch);
  EXPECT_EQ(device.tokens, host.tokens);
  EXPECT_EQ(device.last, host.last);
  EXPECT_EQ(std::vector<std::int32_t>(device.tokens.begin(), device.tokens.begin() + 3),
            (std::vector<std::int32_t>{-1, -1, -1}));
}

TEST(SampleDevice, Bf16LogitsAreTakenAsTheyAre) {
  Rig rig;
  Batch batch(777, 6);
  for (float x : random_floats(6 * 777, 5, 3.0f)) batch.logits.push_back(testing::rounded(DType::bf16, x));
  for (std::size_t slot = 1; slot < batch.params.size(); ++slot)
    batch.params[slot].temperature = 0.25f * static_cast<float>(slot - 1);
  EXPECT_EQ(on_device(rig, batch, DType::bf16).tokens, on_host(rig, batch).tokens);
}

TEST(ScoreDevice, AgreesWithTheCpu) {
  for (std::int64_t vocab : {37, 1000, 128256}) {
    Rig rig(vocab);
    const std::int32_t rows = 7, top_n = 5;
    Host logits = random_rows(rows, vocab, vocab, DType::bf16, 6, 4.0f);  // bf16 values: ties among the best
    logits.values[static_cast<std::size_t>(2 * vocab + 3)] = NAN;
    std::vector<std::int32_t> target, argmax(rows, -9), top_id(rows * top_n, -9);
    for (std::int32_t r = 0; r < rows; ++r)
      target.push_back(r == 4 ? -1 : (r * 31 + 5) % static_cast<std::int32_t>(vocab));
    std::vector<float> logprob(rows, 9.0f), top_logprob(rows * top_n, 9.0f);
    Score host{logits.view, target.data(), logprob.data(),    argmax.data(),
               top_n,       top_id.data(), top_logprob.data()};
    Score a{rig.mirror(logits, DType::f32),
            rig.upload(target),
            rig.upload(logprob),
            rig.upload(argmax),
            top_n,
            rig.upload(top_id),
            rig.upload(top_logprob)};
    rig.ops->score(a, *rig.stream);
    rig.host_ops->score(host, *rig.host_stream);
    rig.finish();
    EXPECT_EQ(rig.download(a.argmax, argmax.size()), argmax);
    std::vector<float> got = rig.download(a.logprob, logprob.size()),
                       got_top = rig.download(a.top_logprob, top_logprob.size());
    std::vector<std::int32_t> got_id = rig.download(a.top_id, top_id.size());
    // Row 2 holds NaN: it has no best token, and its log-probabilities mean nothing.
    for (std::size_t k = 0; k < top_n; ++k)
      got_id[2 * top_n + k] = top_id[2 * top_n + k], got_top[2 * top_n + k] = top_logprob[2 * top_n + k];
    got[2] = logprob[2];
    EXPECT_EQ(got_id, top_id);
    expect_close(got, logprob, DType::f32, 4.0f, 2e-5f, "logprob");
    expect_close(got_top, top_logprob, DType::f32, 4.0f, 2e-5f, "top logprob");
  }
}

}  // namespace
}  // namespace quire::ops::cuda
