// POST /v1/responses: OpenAI's newer form of a chat. Nothing is stored: the whole conversation comes each
// time.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api/call.h"
#include "server/api/fields.h"

namespace quire::server::api {

Problem read_response(const Json& body, const ModelFacts& facts, Call* call);

// The JSON schema of the body, as text.
std::string response_schema();

}  // namespace quire::server::api
