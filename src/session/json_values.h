// JSON text to values of the Jinja engine. Private to chat_template.cc.
#pragma once

#include <jinja/value.h>

#include <string_view>

#include "base/result.h"

namespace quire::session {

inline constexpr std::size_t kJsonDepthMax = 100;

// Objects keep their order; the last of equal keys wins. With mark_input all text in it, keys too, counts
// as written by a user. Throws what the engine throws when its limits are reached. `what` is for messages.
Result<jinja::value> json_to_value(std::string_view json, std::string_view what, bool mark_input);

}  // namespace quire::session
