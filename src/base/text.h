// Small things with text that several modules need: letters, numbers, lists, JSON, SVG. ASCII whatever the
// locale is; bytes that are not ASCII are nobody's letters.
#pragma once

#include <charconv>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace quire {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
// White space of JSON.
constexpr bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
constexpr char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string to_lower(std::string_view text);

// All of `text` as a number, as std::from_chars reads it: no white space, no '+'. False: it is none, or one
// that Number cannot hold; *target stays. `base` is for integers.
template <class Number>
bool parse_number(std::string_view text, Number* target, int base = 10) {
  const char* end = text.data() + text.size();
  Number value{};
  std::from_chars_result read{};
  if constexpr (std::is_integral_v<Number>) {
    read = std::from_chars(text.data(), end, value, base);
  } else {
    read = std::from_chars(text.data(), end, value);
  }
  if (read.ec != std::errc() || read.ptr != end) return false;
  *target = value;
  return true;
}

// "a, b, c". `text` makes a text of an item: a function or a member.
template <class Range, class Text = std::identity>
std::string comma_list(const Range& items, Text text = {}) {
  std::string list;
  for (const auto& item : items) {
    if (!list.empty()) list += ", ";
    list += std::invoke(text, item);
  }
  return list;
}

// The text of a nlohmann::json or ordered_json, which the caller includes. Names and texts come from files,
// flags and models: what is not UTF-8 in them becomes U+FFFD and is not thrown about. `indent` < 0: on one
// line.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// As text or the value of an attribute in SVG.
std::string xml_escaped(std::string_view text);

}  // namespace quire
