// Ids of the tool calls in an answer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "quire/tools.h"

namespace quire::server::api {

// Of call `call` of choice `choice` of the answer `id`: "call_" and 24 letters and digits; for Mistral's
// templates, which take no other, 9 letters and digits.
std::string call_id(ToolFormat format, std::string_view id, std::size_t choice, std::size_t call);

}  // namespace quire::server::api
