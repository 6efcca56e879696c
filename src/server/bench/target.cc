#include "server/bench/target.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace quire::server::bench {

std::string Target::url() const {
  return fmt::format("http://{}:{}{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port,
                     prefix);
}

Result<Target> parse_target(const std::string& url) {
  std::string_view rest = url;
  if (rest.rfind("https://", 0) == 0)
    return bad_input(fmt::format("{}: TLS is a proxy's job; measure the server behind it, http://...", url));
  if (rest.rfind("http://", 0) == 0) rest.remove_prefix(7);
  Target target;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view place = rest.substr(0, slash);
  target.prefix = rest.substr(slash);
  while (!target.prefix.empty() && target.prefix.back() == '/') target.prefix.pop_back();
  // What clients are given as a base often ends in /v1; paths here begin with it.
  if (target.prefix.size() >= 3 && target.prefix.substr(target.prefix.size() - 3) == "/v1")
    target.prefix.resize(target.prefix.size() - 3);
  if (!place.empty() && place.front() == '[') {
    const std::size_t end = place.find(']');
    if (end == std::string_view::npos) return bad_input(fmt::format("{}: a [ without its ]", url));
    target.host = place.substr(1, end - 1);
    place.remove_prefix(end + 1);
  } else {
    const std::size_t colon = std::min(place.find(':'), place.size());
    target.host = place.substr(0, colon);
    place.remove_prefix(colon);
  }
  if (!place.empty()) target.port = place.substr(1);
  const bool numeric = !target.port.empty() && std::all_of(target.port.begin(), target.port.end(), is_digit);
  if (target.host.empty() || !numeric || (!place.empty() && place.front() != ':'))
    return bad_input(fmt::format("{}: give a server as http://HOST:PORT", url));
  std::uint16_t port = 0;
  if (!parse_number(target.port, &port) || port == 0)
    return bad_input(fmt::format("{}: port {} is outside 1 to 65535", url, target.port));
  return target;
}

std::string request_text(const Target& target, std::string_view path, std::string_view body) {
  const std::string host = target.host.find(':') == std::string::npos ? target.host : "[" + target.host + "]";
  std::string text =
      fmt::format("{} {}{} HTTP/1.1\r\nhost: {}:{}\r\nuser-agent: quire-bench\r\naccept: */*\r\n",
                  body.empty() ? "GET" : "POST", target.prefix, path, host, target.port);
  if (!target.key.empty()) text += fmt::format("authorization: Bearer {}\r\n", target.key);
  if (!body.empty())
    text += fmt::format("content-type: application/json\r\ncontent-length: {}\r\n", body.size());
  text += "\r\n";
  text += body;
  return text;
}

}  // namespace quire::server::bench
