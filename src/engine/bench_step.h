// The core of `quire bench step`: what one decode step takes, by batch and context, and what a chunk of a
// prompt takes, by its tokens and those before it. Contexts are made without
// computing their prompts (lengths and tables are real, the cache's contents are not), so a long one costs
// nothing; the time of a step does not depend on what the cache holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "quire/options.h"

namespace quire::engine {

inline constexpr std::int32_t kMostBenchContext = 1 << 30;

struct BenchStepRequest {
  std::vector<std::int32_t> batches;   // sequences decoding together
  std::vector<std::int32_t> contexts;  // tokens in the cache of each
  std::vector<std::int32_t> chunks;    // prompt tokens of one step, measured besides; may be empty
  std::int32_t steps = 16;             // measured; the median counts
  double read_bytes_s = 0.0;           // the machine's measured read bandwidth; 0: no fraction
};

struct BenchStepCell {
  std::int32_t batch = 0;  // decode rows; 0 where a chunk was measured
  std::int32_t context = 0;
  std::int32_t chunk = 0;  // prompt tokens behind `context` others
  double ms = 0.0;         // of a step, median
  double tokens_s = 0.0;
  double fraction = 0.0;           // of the speed at which weights and KV could be read at all
  double host_us = 0.0;            // scheduler, tables, upload, commit: in the device's shadow when it can be
  double gpu_idle_fraction = 0.0;  // of the wall time, the device's stream had nothing to do
};

// Cells in the order contexts x batches, then contexts x chunks; before a chunk stands a whole number of the
// largest one, so contexts are rounded down to that, 0 included, and each is measured once. Limits that the
// cells need are set in `options` where they are 0; what they cannot have is refused (bench_needs.h), so a
// cell's figure is of steps with exactly its rows. The prefix cache is off: prompts are measured, not found.
Result<std::vector<BenchStepCell>> bench_step(const std::string& model, Options options,
                                              const BenchStepRequest& request);

}  // namespace quire::engine
