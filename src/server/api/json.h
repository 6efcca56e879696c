// JSON of requests and answers: nlohmann's, with the order of keys kept (a chat template shows it to the
// model).
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api/error.h"

namespace quire::server::api {

using Json = nlohmann::ordered_json;

// Of a request body, and of JSON that stands in it as a string; the values of all such strings of a body
// count together. The body's bytes are limited before (server/http). Depth: what nests is read and written by
// functions that call themselves. Values: an array of small values takes some 16 bytes each, one of arrays
// some 90; a batch of prompts as token ids has one value a token. Members: an object that keeps its order
// looks at all its names for each new one.
inline constexpr std::size_t kJsonDepthMax = 64;
inline constexpr std::size_t kJsonValuesMax = std::size_t{1} << 20;
inline constexpr std::size_t kJsonMembersMax = 2048;

// What of `text` is over these limits ("is nested 70 deep: at most 64 is taken"); empty: nothing. To be asked
// before anything is built. `left`: how many values are still taken; those of `text` go off.
std::string too_much_json(std::string_view text, std::size_t* left);

// The object that a body holds. Refuses what is not JSON, not UTF-8, not an object, or over the limits.
Problem parse_body(std::string_view body, Json* target);

// A value as a message shows it: JSON, cut after so many bytes.
std::string shown(const Json& value);
// "a string", "an array", "null", ...
std::string_view type_name(const Json& value);

}  // namespace quire::server::api
