// The core of `quire bench offline`: a fixed load without a server. All requests are submitted at once and
// run as one continuous batch to their full length; prompts are random token ids.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "quire/options.h"

namespace quire::engine {

struct BenchOfflineRequest {
  std::int32_t requests = 16;
  std::int32_t prompt_tokens = 256;  // of each
  std::int32_t output_tokens = 64;
  std::uint64_t seed = 0;  // of the prompts
};

struct Percentiles {
  double p50 = 0.0;
  double p99 = 0.0;
};

struct BenchOfflineReport {
  std::int64_t prompt_tokens = 0;  // of all requests
  std::int64_t output_tokens = 0;
  double load_s = 0.0;
  double seconds = 0.0;   // from the first submit to the last token
  double tokens_s = 0.0;  // output tokens
  Percentiles ttft_s;     // since submit: waiting for a place in the batch counts
  Percentiles itl_s;      // between two tokens of a request
  std::int64_t steps = 0;
  std::int64_t retractions = 0;
};

// Limits that the load needs are set in `options` where they are 0.
Result<BenchOfflineReport> bench_offline(const std::string& model, Options options,
                                         const BenchOfflineRequest& request);

}  // namespace quire::engine
