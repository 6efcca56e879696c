#include "server/http/access.h"

#include <algorithm>

#include "base/text.h"

namespace quire::server {

namespace {

bool same(std::string_view given, std::string_view key) {
  std::size_t difference = given.size() ^ key.size();
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  return difference == 0;
}

// `word` is in lower case.
bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() > word.size() && text[word.size()] == ' ' &&
         to_lower(text.substr(0, word.size())) == word;
}

}  // namespace

bool has_key(const HttpRequest& request, std::span<const std::string> keys) {
  if (keys.empty()) return true;
  std::string_view given = request.header("authorization");
  if (starts_with_word(given, "bearer")) {
    given.remove_prefix(std::string_view("bearer").size());
    given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  } else {
    given = request.header("x-api-key");
  }
  bool found = false;
  for (const std::string& key : keys) found |= same(given, key);
  return found;
}

bool is_cors_origin(std::string_view text) {
  if (text == "*" || text == "null") return true;
  constexpr std::string_view kSeparator = "://";
  const std::size_t separator = text.find(kSeparator);
  if (separator == std::string_view::npos) return false;
  const std::string_view scheme = text.substr(0, separator);
  std::string_view host = text.substr(separator + kSeparator.size());
  const auto only = [](std::string_view part, std::string_view more) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [more](char c) {
      return (is_letter_or_digit(c) && c == to_lower(c)) || more.find(c) != std::string_view::npos;
    });
  };
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && !host.ends_with(']')) {
    int port = 0;
    if (!parse_number(host.substr(colon + 1), &port) || port < 1 || port > 65535) return false;
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']'))  // an IPv6 address
    return only(scheme, "+-.") && only(host.substr(1, host.size() - 2), ":.");
  return only(scheme, "+-.") && only(host, "-._~");
}

HttpFields cors_fields(const std::string& origin) {
  if (origin.empty()) return {};
  HttpFields fields = {{"access-control-allow-origin", origin},
                       {"access-control-expose-headers", "x-request-id, retry-after"}};
  if (origin != "*") fields.emplace_back("vary", "origin");
  return fields;
}

std::string allow_value(std::span<const std::string> methods) {
  std::string value;
  for (const std::string& method : methods) {
    value += method + ", ";
    if (method == "GET") value += "HEAD, ";
  }
  return value + "OPTIONS";
}

HttpAnswer options_answer(const HttpRequest& request, std::span<const std::string> methods,
                          const std::string& origin) {
  const std::string allow = allow_value(methods);
  HttpAnswer answer{.status = 204, .content_type = "", .body = "", .headers = {{"allow", allow}}};
  if (origin.empty() || request.header("access-control-request-method").empty()) return answer;
  answer.headers.emplace_back("access-control-allow-methods", allow);
  // A wildcard would not cover Authorization.
  const std::string_view asked = request.header("access-control-request-headers");
  if (!asked.empty()) answer.headers.emplace_back("access-control-allow-headers", asked);
  answer.headers.emplace_back("access-control-max-age", "600");
  return answer;
}

std::string_view usable_request_id(std::string_view id) {
  constexpr std::size_t kLongest = 128;
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return printable && id.size() <= kLongest ? id : std::string_view();
}

}  // namespace quire::server
