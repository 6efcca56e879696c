// Router: from method and path to a handler. Filled before the server starts, then read only.
//
// A pattern is a path whose segments are text or {name}, which takes one segment whole; a last {name*} takes
// the rest with its slashes. Text wins over {name}, {name} over {name*}. HEAD is answered by GET, OPTIONS by
// the server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"

namespace quire::server {

enum class RouteAccess {
  keyed,  // needs an API key when the server has any
  open,   // for everyone: liveness, the web page's own files
};

class Router {
 public:
  // A second handler for a method and pattern is a bug of ours.
  void add(std::string_view method, std::string_view pattern, RouteAccess access, HttpHandler handler);

  struct Match {
    const HttpHandler* handler = nullptr;  // null: no route; `allowed` says whether the path has others
    RouteAccess access = RouteAccess::keyed;
    HttpFields params;
    std::vector<std::string> allowed;  // methods of this path, sorted; empty: the path is unknown
  };
  // `path`: decoded.
  Match find(std::string_view method, std::string_view path) const;
  // For a path that is unknown: " (did you mean ...?)" or nothing.
  std::string hint(std::string_view path) const;
  std::vector<std::string> patterns() const;  // without repeats, in the order of add()

 private:
  struct Route {
    std::string method;
    std::string pattern;
    std::vector<std::string> segments;
    RouteAccess access;
    HttpHandler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace quire::server
