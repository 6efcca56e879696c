// Report: what a simulation came to, as counts, as text and as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/miss.h"

namespace quire::simulate {

struct Quantiles {
  double p50 = 0.0;
  double p99 = 0.0;
};

struct Report {
  std::int64_t requests = 0;
  std::int64_t finished = 0;
  std::int64_t refused = 0;
  std::int64_t aborted = 0;  // by the client or for it
  std::int64_t steps = 0;
  std::int64_t prompt_tokens = 0;    // of the requests that ran
  std::int64_t computed_tokens = 0;  // prompt tokens in steps, again after a retraction
  std::int64_t hit_tokens = 0;       // of prompt_tokens, taken over from the prefix tree at first admission
  std::array<std::int64_t, kv::kMissCodes> why_miss{};  // requests by why no more of them hit
  std::int64_t aligned_hit_tokens =
      -1;                   // what whole pages alone would have hit (page_aligned.h); -1: not asked
  std::int64_t copies = 0;  // pages in which a hit ended
  std::int64_t output_tokens = 0;
  std::int64_t retractions = 0;
  std::int64_t refusals_injected = 0;
  std::vector<std::int64_t> pages_peak;  // per group
  double seconds = 0.0;                  // simulated, from the first arrival to the last answer
  double busy_s = 0.0;                   // of these the device worked
  Quantiles waiting_s;                   // from arrival to the first step
  Quantiles ttft_s;                      // from arrival to the first token
  Quantiles itl_s;                       // between tokens of a request
  std::vector<std::string> violations;   // the first ones; empty when all is well
  std::uint64_t violation_step = 0;
  std::size_t requests_until_violation = 0;  // those that had arrived by then
};

// A few lines for people.
std::string to_text(const Report& report);
// One object: the keys of `quire simulate --json`.
std::string to_json(const Report& report, std::uint64_t seed);

}  // namespace quire::simulate
