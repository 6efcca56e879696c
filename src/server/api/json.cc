#include "server/api/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace quire::server::api {
namespace {

// Without building anything; of broken JSON all are upper bounds.
struct Extent {
  std::size_t depth = 0;
  std::size_t values = 1;
  std::size_t members = 0;  // of the object that has most
};

Extent extent_of(std::string_view text) {
  Extent extent;
  std::size_t depth = 0;
  std::array<std::size_t, kJsonDepthMax + 1> members{};  // of what is open, by its depth
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
    } else if (c == '{' || c == '[') {
      extent.depth = std::max(extent.depth, ++depth);
      if (depth <= kJsonDepthMax) members[depth] = 0;
      ++extent.values;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++extent.values;
    } else if (c == ':' && depth <= kJsonDepthMax) {
      extent.members = std::max(extent.members, ++members[depth]);
    }
  }
  return extent;
}

ApiError not_json(std::string message) { return {400, std::move(message), "", "invalid_json", 0.0}; }

// Without the library's "[json.exception.parse_error.101] ".
std::string plain(const char* what) {
  const std::string_view text = what;
  const std::size_t end = text.find("] ");
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2)).substr(0, 300);
}

}  // namespace

std::string too_much_json(std::string_view text) {
  const Extent extent = extent_of(text);
  if (extent.depth > kJsonDepthMax)
    return fmt::format("is nested {} deep: at most {} is taken", extent.depth, kJsonDepthMax);
  if (extent.values > kJsonValuesMax)
    return fmt::format("holds {} values: at most {} are taken; send fewer at a time", extent.values,
                       kJsonValuesMax);
  if (extent.members > kJsonMembersMax)
    return fmt::format("has an object of {} members: at most {} are taken", extent.members, kJsonMembersMax);
  return "";
}

Problem parse_body(std::string_view body, Json* target) {
  if (body.empty()) return not_json("the body is empty: send a JSON object");
  if (const std::string much = too_much_json(body); !much.empty())
    return not_json(fmt::format("the body {}", much));
  try {
    *target = Json::parse(body);
  } catch (const Json::exception& error) {
    return not_json(fmt::format("the body is not JSON: {}", plain(error.what())));
  }
  if (!target->is_object())
    return not_json(fmt::format("the body is {}: send a JSON object", type_name(*target)));
  return {};
}

std::string shown(const Json& value) {
  constexpr std::size_t kBytesMax = 60;
  if (value.is_structured()) return std::string(type_name(value));
  std::string text = json_text(value);
  if (text.size() <= kBytesMax) return text;
  text.resize(kBytesMax);
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  return text + "...";
}

std::string_view type_name(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

}  // namespace quire::server::api
