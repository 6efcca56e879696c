#include "ops/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/philox.h"

namespace quire::ops::cpu {
namespace {

// A token stays while its value is over the border, or at it with an id up to the border's: every filter
// cuts the same total order (value down, id up), so what is kept is always one prefix of it.
struct Border {
  float value = -std::numeric_limits<float>::infinity();
  std::int32_t id = std::numeric_limits<std::int32_t>::max();
  bool keeps(float x, std::int32_t i) const { return x > value || (x == value && i <= id); }
};

struct Before {
  const float* x;
  bool operator()(std::int32_t a, std::int32_t b) const { return x[a] > x[b] || (x[a] == x[b] && a < b); }
};

// Each token's penalties once: counts first, then applied where a count is left.
void apply_penalties(const SampleRow& row, std::int32_t* counts) {
  const SamplingParams& p = *row.params;
  const bool over_outputs = p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f;
  if (p.repetition_penalty == 1.0f && !over_outputs) return;
  constexpr std::int32_t kSeen = 1 << 30;
  const auto legal = [&](std::int32_t token) { return token >= 0 && token < row.vocab; };
  for (std::int32_t i = 0; i < row.token_count; ++i) {
    if (!legal(row.tokens[i])) continue;
    std::int32_t& count = counts[row.tokens[i]];
    count |= kSeen;
    if (i >= row.prompt_length) ++count;
  }
  for (std::int32_t i = 0; i < row.token_count; ++i) {
    if (!legal(row.tokens[i])) continue;
    std::int32_t& count = counts[row.tokens[i]];
    if (count == 0) continue;
    float& logit = row.logits[row.tokens[i]];
    logit = logit > 0.0f ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    const std::int32_t outputs = count & ~kSeen;
    if (outputs > 0) logit -= static_cast<float>(outputs) * p.frequency_penalty + p.presence_penalty;
    count = 0;
  }
}

void apply_bias(const SampleRow& row) {
  for (std::int32_t i = 0; i < row.params->bias_count; ++i) {
    const LogitBias& bias = row.bias[i];
    if (bias.token >= 0 && bias.token < row.vocab) row.logits[bias.token] += bias.value;
  }
}

// False when nothing is left.
bool apply_mask(const SampleRow& row) {
  if (row.mask == nullptr) return true;
  constexpr std::int32_t kBits = 32;
  bool possible = false;
  for (std::int32_t begin = 0; begin < row.vocab; begin += kBits) {
    const std::uint32_t word = row.mask[begin / kBits];
    const std::int32_t end = std::min(row.vocab, begin + kBits);
    for (std::int32_t i = begin; i < end; ++i) {
      if ((word >> (i - begin) & 1u) == 0) row.logits[i] = -std::numeric_limits<float>::infinity();
      possible = possible || row.logits[i] > -std::numeric_limits<float>::infinity();
    }
  }
  return possible;
}

Border cut_top_k(const float* x, std::int32_t vocab, std::int32_t k, std::int32_t* ids) {
  if (k <= 0 || k >= vocab) return {};
  for (std::int32_t i = 0; i < vocab; ++i) ids[i] = i;
  std::nth_element(ids, ids + k - 1, ids + vocab, Before{x});
  return {x[ids[k - 1]], ids[k - 1]};
}

// The smallest prefix whose share of what is kept so far reaches top_p.
Border cut_top_p(const float* x, const float* weight, std::int32_t vocab, float top_p, Border border,
                 std::int32_t* ids) {
  if (top_p >= 1.0f) return border;
  std::int32_t count = 0;
  double total = 0.0;
  for (std::int32_t i = 0; i < vocab; ++i) {
    if (!border.keeps(x[i], i)) continue;
    ids[count++] = i;
    total += weight[i];
  }
  const auto after = [before = Before{x}](std::int32_t a, std::int32_t b) { return before(b, a); };
  std::make_heap(ids, ids + count, after);
  double reached = 0.0;
  while (count > 0) {
    const std::int32_t id = ids[0];
    reached += weight[id];
    border = {x[id], id};
    if (reached >= static_cast<double>(top_p) * total) break;
    std::pop_heap(ids, ids + count, after);
    --count;
  }
  return border;
}

std::int32_t draw(const SampleRow& row, const float* x, const float* weight, Border border) {
  const SamplingParams& p = *row.params;
  const auto kept = [&](std::int32_t i) { return border.keeps(x[i], i) && weight[i] >= p.min_p; };
  double total = 0.0;
  for (std::int32_t i = 0; i < row.vocab; ++i) total += kept(i) ? weight[i] : 0.0;
  const auto sampled = static_cast<std::uint64_t>(std::max(0, row.token_count - row.prompt_length));
  const double target = uniform_draw(p.seed, p.sequence_index, sampled) * total;
  double reached = 0.0;
  std::int32_t last = 0;
  for (std::int32_t i = 0; i < row.vocab; ++i) {
    if (!kept(i) || weight[i] == 0.0f) continue;
    reached += weight[i];
    last = i;
    if (reached > target) break;
  }
  return last;
}

std::int32_t choose(const SampleRow& row, const RowMath& math, const SampleScratch& scratch) {
  const float temperature = row.params->temperature;
  if (!(temperature > 0.0f)) return argmax(row.logits, row.vocab, math);
  float* x = scratch.scaled;
  for (std::int32_t i = 0; i < row.vocab; ++i) x[i] = row.logits[i] / temperature;
  const float largest = math.max(x, row.vocab);
  // No distribution: everything is forbidden, or a value (or a tiny temperature) is out of range.
  if (!std::isfinite(largest)) return argmax(row.logits, row.vocab, math);
  math.exp_shifted(x, largest, scratch.weight, row.vocab);
  for (std::int32_t i = 0; i < row.vocab; ++i) {
    if (std::isnan(x[i])) {
      x[i] = -std::numeric_limits<float>::infinity();
      scratch.weight[i] = 0.0f;
    }
  }
  Border border = cut_top_k(x, row.vocab, row.params->top_k, scratch.ids);
  border = cut_top_p(x, scratch.weight, row.vocab, row.params->top_p, border, scratch.ids);
  return draw(row, x, scratch.weight, border);
}

}  // namespace

std::int32_t argmax(const float* x, std::int32_t n, const RowMath& math) {
  const float largest = math.max(x, n);
  for (std::int32_t i = 0; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

double log_sum_exp(const float* x, std::int32_t n, const RowMath& math) {
  const float largest = math.max(x, n);
  return static_cast<double>(largest) + std::log(math.sum_exp(x, n, largest));
}

bool sound(const float* logits, std::int32_t n) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::int32_t bad = 0;
  std::int32_t possible = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    bad |= static_cast<std::int32_t>(!(logits[i] < kInf));
    possible |= static_cast<std::int32_t>(logits[i] > -kInf);
  }
  return bad == 0 && possible != 0;
}

bool SampleRow::changes_logits() const {
  return mask != nullptr || params->bias_count > 0 || params->repetition_penalty != 1.0f ||
         params->frequency_penalty != 0.0f || params->presence_penalty != 0.0f;
}

std::int32_t sample_row(const SampleRow& row, const RowMath& math, const SampleScratch& scratch) {
  if (!sound(row.logits, row.vocab)) return -1;
  apply_penalties(row, scratch.counts);
  apply_bias(row);
  if (!apply_mask(row)) return -1;
  return choose(row, math, scratch);
}

}  // namespace quire::ops::cpu
