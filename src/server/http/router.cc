#include "server/http/router.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/nearest.h"

namespace quire::server {

namespace {

// "/v1/models/a" -> {"v1", "models", "a"}; a last slash gives a last empty segment.
std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> segments;
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  while (true) {
    const std::size_t slash = path.find('/');
    segments.emplace_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return segments;
    path.remove_prefix(slash + 1);
  }
}

bool takes_one(const std::string& segment) { return segment.starts_with('{') && segment.ends_with('}'); }
bool takes_rest(const std::string& segment) { return takes_one(segment) && segment.ends_with("*}"); }

std::string name_of(const std::string& segment) {
  return segment.substr(1, segment.size() - (takes_rest(segment) ? 3 : 2));
}

std::string join(const std::vector<std::string>& segments, std::size_t from) {
  std::string all = segments[from];
  for (std::size_t i = from + 1; i < segments.size(); ++i) all += '/' + segments[i];
  return all;
}

// Whether the path's segments fit; `params` gets what the names stand for.
bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& path, HttpFields& params) {
  params.clear();
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size() || (takes_one(pattern[i]) && path[i].empty())) return false;
    if (takes_rest(pattern[i])) {
      params.emplace_back(name_of(pattern[i]), join(path, i));
      return true;
    }
    if (takes_one(pattern[i])) {
      params.emplace_back(name_of(pattern[i]), path[i]);
    } else if (pattern[i] != path[i]) {
      return false;
    }
  }
  return pattern.size() == path.size();
}

// Text before a name before the rest, at the first segment that differs in kind.
bool closer(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto kind = [](const std::string& segment) {
    return takes_rest(segment) ? 2 : int{takes_one(segment)};
  };
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (kind(a[i]) != kind(b[i])) return kind(a[i]) < kind(b[i]);
  }
  return false;
}

}  // namespace

void Router::add(std::string_view method, std::string_view pattern, RouteAccess access, HttpHandler handler) {
  QUIRE_CHECK(pattern.starts_with('/') && handler, "route {} {}", method, pattern);
  for (const Route& route : routes_) {
    QUIRE_CHECK(route.method != method || route.pattern != pattern, "a second route {} {}", method, pattern);
  }
  routes_.push_back({std::string(method), std::string(pattern), split(pattern), access, std::move(handler)});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  const std::vector<std::string> segments = split(path);
  Match match;
  const Route* best = nullptr;  // of any method: the pattern decides first
  HttpFields params;
  for (const Route& route : routes_) {
    if (!fits(route.segments, segments, params)) continue;
    if (best != nullptr && best->pattern != route.pattern) {
      if (!closer(route.segments, best->segments)) continue;
      match = Match{};
    }
    best = &route;
    match.allowed.push_back(route.method);
    if (route.method != method) continue;
    match.handler = &route.handler;
    match.access = route.access;
    match.params = params;
  }
  std::sort(match.allowed.begin(), match.allowed.end());
  return match;
}

std::string Router::hint(std::string_view path) const {
  const std::vector<std::string> known = patterns();
  const std::vector<std::string_view> views(known.begin(), known.end());
  return did_you_mean(path, views);
}

std::vector<std::string> Router::patterns() const {
  std::vector<std::string> all;
  for (const Route& route : routes_) {
    if (std::find(all.begin(), all.end(), route.pattern) == all.end()) all.push_back(route.pattern);
  }
  return all;
}

}  // namespace quire::server
