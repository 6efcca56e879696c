// The file of `run --prompts`: one JSON object a line with "prompt", "ids" or "messages" and, if wanted,
// max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, frequency_penalty, presence_penalty,
// seed, stop, ignore_eos, logit_bias, priority, deadline_s, cache_salt, n (so many samples). Unsaid values
// are those of the command line. With "arrival_s" a request comes so many seconds after the start, else at
// once.
#pragma once

#include <string>
#include <vector>

#include "quire/session.h"

namespace quire::cli {

inline constexpr std::int32_t kMostSamples = 1024;

struct NumberedRequest {
  int line = 0;  // of the file, from 1; 0: of the command line
  double arrival_s = 0.0;
  std::int32_t n = 1;   // samples; the s-th has sequence index request.sequence_index + s
  TextRequest request;  // what all samples share
};

// `chat`: a "prompt" becomes one user message for the chat template. `n`: samples of a line that does not say
// it. The i-th sample of all has sequence index i, so that equal seeds draw apart. A key with null is as one
// that is not there. An error names the line.
Result<std::vector<NumberedRequest>> parse_prompts(const std::string& text, const TextRequest& base,
                                                   bool chat, std::int32_t n);

}  // namespace quire::cli
