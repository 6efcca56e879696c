// The sampling fields that the endpoints share, and what a request without them gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/session.h"
#include "server/api/fields.h"

namespace quire::server::api {

struct SamplingFields {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<std::int64_t> top_k, seed, priority;
  std::optional<double> deadline_s;
  std::optional<bool> ignore_eos;
  std::optional<std::string> cache_salt;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::vector<std::string> stop;
};

// temperature and top_p, which every endpoint has.
void visit_temperature(Fields& fields, SamplingFields& sampling);
// stop, seed, logit_bias and the two penalties, which /v1/responses does not have.
void visit_sampling(Fields& fields, SamplingFields& sampling);
// This server's own: top_k, min_p, repetition_penalty, ignore_eos, priority, deadline_s, cache_salt.
void visit_own_sampling(Fields& fields, SamplingFields& sampling);

// Into a request: what is absent is what the model's generation_config.json says, else OpenAI's default
// (temperature 1). The seed is left at 0 when it is absent.
void apply(const SamplingFields& sampling, const GenerationDefaults& defaults, TextRequest* request);

}  // namespace quire::server::api
