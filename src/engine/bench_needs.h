// What `quire bench step` needs of an engine, found out before one is opened. A cell is a claim about so many
// rows in every measured step, so all of its sequences must be there from the first of them to the last: none
// may wait for KV, be retracted for it, or end by the length of its context.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/bench_step.h"
#include "quire/options.h"

namespace quire::engine {

inline constexpr std::int32_t kWarmSteps = 3;  // before those that are measured

// Output tokens of each sequence of a decode cell: it decodes while the prompts of the others are computed,
// and in the warm, the measured and one more step.
std::int64_t answer_tokens(const BenchStepRequest& request, std::int64_t batch, std::int64_t context,
                           std::int64_t chunk_tokens);

// Sets the limits that the cells need where `options` leave them open. bad_input where a limit, given or the
// model's, is below a cell; no_resources where the KV memory, given or there, does not hold one. Both name
// the figures and the nearest values of this command's own flags that would do.
Status provide(const std::string& model, const BenchStepRequest& request, Options& options);

}  // namespace quire::engine
