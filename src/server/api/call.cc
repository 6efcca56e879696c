#include "server/api/call.h"

namespace quire::server::api {

std::vector<TextRequest> requests_of(const Call& call, std::uint64_t fresh_seed) {
  std::vector<TextRequest> requests;
  requests.reserve(call.size());
  for (const TextRequest& prompt : call.prompts) {
    for (std::int32_t choice = 0; choice < call.choices; ++choice) {
      requests.push_back(prompt);
      if (call.draws_seed) requests.back().sampling.seed = fresh_seed;
      requests.back().sequence_index = static_cast<std::uint64_t>(choice);
    }
  }
  return requests;
}

}  // namespace quire::server::api
