// One row of sampling: from logits, a sequence's wishes and its tokens to the next token. The order is
// cli.md's: penalties, bias, temperature, top-k, top-p, min-p, draw.
#pragma once

#include <cstdint>

#include "ops/cpu/row_math.h"
#include "ops/ops.h"

namespace quire::ops::cpu {

// Memory of one row in work: per thread.
struct SampleScratch {
  std::int32_t* counts = nullptr;  // [vocab], zeros; left as zeros
  float* scaled = nullptr;         // [vocab]
  float* weight = nullptr;         // [vocab]
  std::int32_t* ids = nullptr;     // [vocab]
  float* logits = nullptr;         // [vocab]
};

struct SampleRow {
  float* logits = nullptr;  // [vocab], changed in place by penalties, bias and mask
  std::int32_t vocab = 0;
  const SamplingParams* params = nullptr;
  const LogitBias* bias = nullptr;       // [params->bias_count]
  const std::int32_t* tokens = nullptr;  // [token_count] prompt, then output
  std::int32_t token_count = 0;
  std::int32_t prompt_length = 0;
  const std::uint32_t* mask = nullptr;  // [mask_words(vocab)], as in ops::Sample; null: every token

  bool changes_logits() const;
};

// The next token; -1 when the logits are not sound, or the mask leaves none.
std::int32_t sample_row(const SampleRow& row, const RowMath& math, const SampleScratch& scratch);

// No NaN, no +inf, and one value at least above -inf (which forbids a token).
bool sound(const float* logits, std::int32_t n);

// The largest value's index, ties to the lower one; NaN is passed over; 0 when there is nothing else.
std::int32_t argmax(const float* x, std::int32_t n, const RowMath& math);
// log of the sum of exp(x), accumulated in double; x must have a finite largest value to be finite.
double log_sum_exp(const float* x, std::int32_t n, const RowMath& math);

}  // namespace quire::ops::cpu
