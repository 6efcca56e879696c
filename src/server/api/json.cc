#include "server/api/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_extent.h"
#include "base/text.h"

namespace quire::server::api {
namespace {

ApiError not_json(std::string message) { return {400, std::move(message), "", "invalid_json", 0.0}; }

// Without the library's "[json.exception.parse_error.101] ".
std::string plain(const char* what) {
  const std::string_view text = what;
  const std::size_t end = text.find("] ");
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2)).substr(0, 300);
}

}  // namespace

static_assert(kJsonDepthMax <= kMembersDepth, "members of what is legally deep are counted");

std::string too_much_json(std::string_view text, std::size_t* left) {
  const JsonExtent extent = json_extent(text);
  if (extent.depth > kJsonDepthMax)
    return fmt::format("is nested {} deep: at most {} is taken", extent.depth, kJsonDepthMax);
  if (extent.values > *left)
    return fmt::format(
        "holds {} values{}: at most {} are taken; send fewer at a time", extent.values,
        *left < kJsonValuesMax ? fmt::format(" and those before it {}", kJsonValuesMax - *left) : "",
        kJsonValuesMax);
  if (extent.members > kJsonMembersMax)
    return fmt::format("has an object of {} members: at most {} are taken", extent.members, kJsonMembersMax);
  *left -= extent.values;
  return "";
}

Problem parse_body(std::string_view body, Json* target) {
  if (body.empty()) return not_json("the body is empty: send a JSON object");
  std::size_t left = kJsonValuesMax;
  if (const std::string much = too_much_json(body, &left); !much.empty())
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
