// Parts that the answers of several endpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api/answer.h"
#include "server/api/json.h"

namespace quire::server::api {

// One server-sent event.
std::string sse(const Json& data);
std::string sse(std::string_view event, const Json& data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// A log-probability as JSON holds it: no infinity, -9999 as OpenAI has it.
double finite(float logprob);
// {"token","logprob","bytes"[,"top_logprobs"]}
Json token_json(const TextLogprob& token);
// A token's text: "bytes:\xe2\x80" where it is not whole characters, as /v1/completions has it.
std::string token_text(std::string_view bytes);
bool is_utf8(std::string_view bytes);
std::size_t characters(std::string_view text);

// {"prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details":{"cached_tokens"},...}
Json usage_json(const Totals& totals);
// This server's own, for each choice: why not more was cached, times, how it ended.
Json own_json(const Totals& totals);
// What a whole answer, and the last chunk of a stream, ends with: `object` with "choices", "usage", "quire".
Json with_totals(Json object, Json choices, const Totals& totals);

}  // namespace quire::server::api
