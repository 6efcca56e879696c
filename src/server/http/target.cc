#include "server/http/target.h"

namespace quire::server {

namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::optional<std::string> decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_value(text[i + 1]);
      const int low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (is_control(c)) return std::nullopt;
    out += c;
  }
  return out;
}

bool parse_query(std::string_view text, HttpFields& query) {
  while (!text.empty()) {
    const std::size_t end = text.find('&');
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const std::optional<std::string> name = decode(part.substr(0, equals), true);
    const std::optional<std::string> value =
        decode(equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1), true);
    if (!name || !value) return false;
    query.emplace_back(*name, *value);
  }
  return true;
}

}  // namespace

std::optional<Target> parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const std::size_t path = target.find_first_of("/?", scheme.size());
    target = path == std::string_view::npos ? "/" : target.substr(path);
    break;
  }
  target = target.substr(0, target.find('#'));
  const std::size_t question = target.find('?');
  std::optional<std::string> path = decode(target.substr(0, question), false);
  if (!path || !path->starts_with('/')) return std::nullopt;
  Target parsed{std::move(*path), {}};
  if (question != std::string_view::npos && !parse_query(target.substr(question + 1), parsed.query))
    return std::nullopt;
  return parsed;
}

}  // namespace quire::server
