// What the requests of a load say: lines of a file, or words that share beginnings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/bench/client.h"

namespace quire::server::bench {

struct Wording {
  std::string model;
  bool chat = false;  // /v1/chat/completions, else /v1/completions
  int output_tokens = 128;
  bool ignore_eos = true;  // an extension that vLLM, llama.cpp and Quire know
  double temperature = 0.0;
};

// Words about as long as tokens of most vocabularies: how many tokens they became, the answers' usage says.
struct Synthetic {
  int requests = 64;
  int prefixes = 1;      // different shared beginnings
  int prefix_words = 0;  // of each; 0: nothing is shared
  int own_words = 256;   // of each request behind it
  std::uint64_t seed = 0;
};

// One line a request: {"prompt": text} or {"messages": [...]}, with "max_tokens" or any other field of the
// API, which goes out as it stands there. `requests` of them: lines repeat when there are fewer; 0: each
// once.
Result<std::vector<Job>> jobs_of_file(const std::string& text, const Wording& wording, int requests);

// In an order that mixes the prefixes; equal seeds give equal requests.
std::vector<Job> synthetic_jobs(const Synthetic& synthetic, const Wording& wording);

// Sets the times at which an open loop begins its requests: `rate` a second, at random (Poisson).
void set_arrivals(std::vector<Job>& jobs, double rate, std::uint64_t seed);

}  // namespace quire::server::bench
