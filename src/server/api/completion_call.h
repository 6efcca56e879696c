// POST /v1/completions: prompts as texts or token ids.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api/call.h"
#include "server/api/fields.h"

namespace quire::server::api {

Problem read_completion(const Json& body, const ModelFacts& facts, Call* call);

// The JSON schema of the body, as text.
std::string completion_schema();

}  // namespace quire::server::api
