// The input of /v1/responses: a text, or items (messages, calls, results of calls), as messages for a
// template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/api/json.h"

namespace quire::server::api {

// Appends to `messages`. Calls that follow each other, or an assistant's message, become one message.
Problem read_input(const Json& value, const std::string& path, Json* messages);

const char* input_schema();

}  // namespace quire::server::api
