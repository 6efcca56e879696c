// The messages of a conversation, from OpenAI's form to the one that chat templates read.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api/json.h"

namespace quire::server::api {

// Checks and rewrites an array of messages:
// - content parts of text become one text, joined by line ends; other parts are refused;
// - "developer" becomes "system", which every template knows;
// - the arguments of a tool call become the object that their text is, where it is one.
Problem read_messages(const Json& value, const std::string& path, Json* messages);

// The text of a content that is a string or an array of parts. `kinds`: the types of parts that are
// text.
Problem read_content(const Json& value, const std::string& path,
                     std::initializer_list<std::string_view> kinds, std::string* text);

// The arguments of a tool call as a template wants them: the object that the text is, or else the text.
// Refuses an object over the limits of json.h; `left` as there, over all calls of a body.
Problem read_arguments(const std::string& text, const std::string& path, std::size_t* left, Json* value);

// JSON schema of the array.
const char* messages_schema();

}  // namespace quire::server::api
