// POST /v1/chat/completions: a conversation through the model's chat template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api/call.h"
#include "server/api/fields.h"

namespace quire::server::api {

Problem read_chat(const Json& body, const ModelFacts& facts, Call* call);

// The JSON schema of the body, as text.
std::string chat_schema();

}  // namespace quire::server::api
