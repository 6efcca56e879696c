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

// Of one request body. Its bytes are limited before (server/http). Values: an array of small values takes
// some 16 bytes each, one of arrays some 90; a batch of prompts as token ids has one value a token.
inline constexpr std::size_t kBodyDepthMax = 64;
inline constexpr std::size_t kBodyValuesMax = std::size_t{1} << 20;

// The object that a body holds. Refuses what is not JSON, not UTF-8, not an object, nested deeper or with
// more values than the limits: before anything is built.
Problem parse_body(std::string_view body, Json* target);

// Compact; bytes that are not UTF-8 become U+FFFD.
std::string dumped(const Json& value);
// A value as a message shows it: JSON, cut after so many bytes.
std::string shown(const Json& value);
// "a string", "an array", "null", ...
std::string_view type_name(const Json& value);

}  // namespace quire::server::api
