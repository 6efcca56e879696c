// What `quire bench step` needs of an engine, found out before one is opened. A cell is a claim about so many
// rows in every measured step, so all of its sequences must be there from the first of them to the last: none
// may wait for KV, be retracted for it, or end by the length of its context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/bench_step.h"
#include "quire/options.h"

namespace quire::engine {

inline constexpr std::int32_t kWarmSteps = 3;  // before those that are measured

// One sequence of a decode cell, in tokens. It yields them in the steps in which later prompts are computed,
// in the warm and the measured ones, and in one more.
struct CellSequence {
  std::int64_t prompt = 0;
  std::int64_t answer = 0;
};

// The cell's sequences in the order of their submission. The first decode while the prompts of the others are
// computed, `chunk_tokens` in a step, so theirs are shorter by as many tokens: when the last one begins, all
// have `context` tokens in the cache (one less at times; more where a prompt would have to be shorter than
// 1).
std::vector<CellSequence> cell_sequences(const BenchStepRequest& request, std::int64_t batch,
                                         std::int64_t context, std::int64_t chunk_tokens);

// Sets the limits that the cells need where `options` leave them open. bad_input where a limit, given or the
// model's, is below a cell; no_resources where the KV memory, given or there, does not hold one. Both name
// the figures and the nearest values of this command's own flags that would do.
Status provide(const std::string& model, const BenchStepRequest& request, Options& options);

}  // namespace quire::engine
