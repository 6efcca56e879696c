// The target of a request line: "/a%20b?x=1&y" into a path and its query.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace quire::server {

struct Target {
  std::string path;  // decoded; starts with '/'
  HttpFields query;  // decoded, '+' as a space
};

// Nothing when it is no path: a broken escape, a control character, neither "/..." nor "http://host/...".
std::optional<Target> parse_target(std::string_view target);

}  // namespace quire::server
