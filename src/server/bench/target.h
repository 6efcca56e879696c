// The server that a load goes to: where it is, and how its requests are written.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::server::bench {

struct Target {
  std::string host;  // name or address, without brackets
  std::string port = "80";
  std::string prefix;  // of every path: "" or "/api"
  std::string key;     // sent as a bearer token; empty: none

  std::string url() const;
};

// "http://127.0.0.1:8080", "http://[::1]:8080/api", "localhost:8080". TLS is refused: measure behind the
// proxy.
Result<Target> parse_target(const std::string& url);

// A whole request, head and body. An empty body is a GET.
std::string request_text(const Target& target, std::string_view path, std::string_view body);

}  // namespace quire::server::bench
