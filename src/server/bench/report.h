// What the outcomes of a load say: totals, percentiles, and how much of it met the limits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "server/bench/client.h"

namespace quire::server::bench {

struct Spread {  // seconds; all 0 without values
  double mean = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};
// 0: no such limit.
struct Limits {
  double ttft_p99_s = 0.0;
  double itl_p99_s = 0.0;
  bool any() const { return ttft_p99_s > 0.0 || itl_p99_s > 0.0; }
};

// A request is good when it has its whole answer, its first token came within the one limit, and the p99 of
// its own gaps between tokens is within the other. `met`: the p99 over all requests are within the limits and
// none failed.
struct Goodput {
  std::int64_t requests = 0;
  double share = 0.0;  // of all
  double requests_s = 0.0;
  double tokens_s = 0.0;  // output tokens of good requests
  bool met = false;
};

// Seconds of the completed requests, sorted: what the spreads are of.
struct Times {
  std::vector<double> ttft;
  std::vector<double> itl;
  std::vector<double> tpot;
  std::vector<double> e2e;
};

struct Report {
  std::int64_t requests = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::map<std::string, std::int64_t> errors;  // by status or message
  double seconds = 0.0;                        // from the first begin to the last end
  std::int64_t prompt_tokens = 0;              // these of completed requests, as the server counted them
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t uncounted = 0;   // completed requests without usage: their events with text count as tokens
  double requests_s = 0.0;      // completed
  double tokens_s = 0.0;        // output tokens
  double total_tokens_s = 0.0;  // with the prompts
  Spread ttft_s;
  Spread itl_s;   // between events with text: a server that sends several tokens in one has longer ones
  Spread tpot_s;  // from the first to the last text, per token after the first: one value a request
  Spread e2e_s;
  Times times;
  Goodput goodput;
};

Report report_of(std::span<const Outcome> outcomes, const Limits& limits);

}  // namespace quire::server::bench
