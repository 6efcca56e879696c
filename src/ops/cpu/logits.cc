// sample and score: rows of logits to tokens and log-probabilities, rows shared out among the threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/parts.h"
#include "ops/cpu/sampler.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

SampleScratch carve_sample(Carver& carver, std::int64_t vocab) {
  SampleScratch s;
  s.scaled = carver.take<float>(vocab);
  s.weight = carver.take<float>(vocab);
  s.ids = carver.take<std::int32_t>(vocab);
  s.logits = carver.take<float>(vocab);
  return s;
}

struct SampleTask {
  Sample args;
  const RowMath* math;
  const Workspace* workspace;
};

void run_sample_row(const SampleTask& task, std::int64_t i, int thread) {
  const Sample& a = task.args;
  const std::int32_t index = a.row_index[i];
  const std::int32_t slot = index < 0 ? 0 : a.step_rows[index].slot;
  if (slot == 0) {
    a.out_token[i] = 0;
    return;
  }
  const Workspace& w = *task.workspace;
  const std::int64_t vocab = a.logits.cols();
  Carver sizes(nullptr);
  carve_sample(sizes, vocab);
  Carver carver(w.scratch() + thread * sizes.used());
  SampleScratch scratch = carve_sample(carver, vocab);
  scratch.counts = w.counts(thread);

  SampleRow row;
  row.logits = row_of(a.logits, i);
  row.vocab = static_cast<std::int32_t>(vocab);
  row.params = a.params + slot;
  row.bias = a.bias ? a.bias + std::int64_t{slot} * kMaxLogitBias : nullptr;
  std::int32_t* history = a.state.history + slot * a.state.history_stride;
  const std::int32_t length = a.state.length[slot] + a.step_rows[index].q_len;
  row.tokens = history;
  row.token_count = static_cast<std::int32_t>(std::min<std::int64_t>(length, a.state.history_stride));
  row.prompt_length = a.state.prompt_length[slot];
  const std::int32_t mask = a.mask_row == nullptr ? -1 : a.mask_row[i];
  if (mask >= 0) row.mask = a.masks + mask * mask_words(vocab);
  if (row.changes_logits()) {
    std::copy_n(row.logits, vocab, scratch.logits);
    row.logits = scratch.logits;
  }
  const std::int32_t token = sample_row(row, *task.math, scratch);
  const std::int32_t next = std::max(token, 0);
  a.out_token[i] = token;
  a.state.last_token[slot] = next;
  if (length < a.state.history_stride) history[length] = next;
}

// The n best by value, ties to the lower id: one pass that keeps a sorted list (n is small).
void top_of(const float* x, std::int64_t vocab, std::int32_t n, double total, std::int32_t* id,
            float* logprob) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < vocab; ++i) {
    if (count == n && !(x[i] > x[id[n - 1]])) continue;
    std::int32_t at = count < n ? count++ : n - 1;
    for (; at > 0 && x[i] > x[id[at - 1]]; --at) id[at] = id[at - 1];
    id[at] = static_cast<std::int32_t>(i);
  }
  for (std::int32_t k = 0; k < count; ++k)
    logprob[k] = static_cast<float>(static_cast<double>(x[id[k]]) - total);
  for (std::int32_t k = count; k < n; ++k) {
    id[k] = -1;
    logprob[k] = std::numeric_limits<float>::quiet_NaN();
  }
}

void run_score_row(const Score& a, const RowMath& math, std::int64_t i) {
  const float* x = row_of(a.logits, i);
  const auto vocab = static_cast<std::int32_t>(a.logits.cols());
  const double total = log_sum_exp(x, vocab, math);
  if (a.argmax) a.argmax[i] = sound(x, vocab) ? argmax(x, vocab, math) : -1;
  if (a.logprob) {
    const std::int32_t target = a.target ? a.target[i] : -1;
    QUIRE_CHECK(target < vocab, "target {} of {}", target, vocab);
    a.logprob[i] = target < 0 ? std::numeric_limits<float>::quiet_NaN()
                              : static_cast<float>(static_cast<double>(x[target]) - total);
  }
  if (a.top_n > 0) top_of(x, vocab, a.top_n, total, a.top_id + i * a.top_n, a.top_logprob + i * a.top_n);
}

}  // namespace

std::int64_t sample_workspace_bytes(const OpsLimits& limits) {
  Carver sizes(nullptr);
  carve_sample(sizes, limits.vocab);
  return sizes.used() * limits.threads;
}

void CpuOps::sample(const Sample& args, platform::Stream& stream) {
  auto& cpu = platform::cpu::as_cpu(stream);
  const OpsLimits& limits = workspace_.limits();
  QUIRE_CHECK(is_matrix(args.logits) && args.logits.cols() <= limits.vocab && cpu.threads() <= limits.threads,
              "vocabulary {} of {}, threads {} of {}", args.logits.cols(), limits.vocab, cpu.threads(),
              limits.threads);
  const SampleTask task{args, &math_, &workspace_};
  cpu.enqueue([task](Team& team) {
    for_rows(team, task.args.logits.rows(), task.args.logits.cols() * 8,
             [&](std::int64_t row, int thread) { run_sample_row(task, row, thread); });
  });
}

void CpuOps::score(const Score& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.logits) && (args.top_n == 0 || (args.top_id && args.top_logprob)), "top_n={}",
              args.top_n);
  const RowMath* math = &math_;
  platform::cpu::as_cpu(stream).enqueue([args, math](Team& team) {
    for_rows(team, args.logits.rows(), args.logits.cols() * 8,
             [&](std::int64_t row, int) { run_score_row(args, *math, row); });
  });
}

}  // namespace quire::ops::cpu
