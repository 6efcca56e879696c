#include "kv/group.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {
namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

std::string_view to_string(Keep keep) {
  switch (keep) {
    case Keep::all:
      return "all";
    case Keep::window:
      return "window";
    case Keep::chunk:
      return "chunk";
  }
  return "unknown";
}

std::int64_t pages_for(const GroupRule& rule, std::int64_t tokens) {
  return ceil_div(tokens, rule.page_tokens);
}

std::int64_t visible_begin(const GroupRule& rule, std::int64_t p) {
  switch (rule.keep) {
    case Keep::all:
      return 0;
    case Keep::window:
      return std::max<std::int64_t>(0, p - rule.width + 1);
    case Keep::chunk:
      return p / rule.width * rule.width;
  }
  return 0;
}

std::int64_t first_live_entry(const GroupRule& rule, Committed committed) {
  // Page i ends with key (i + 1) * P - 1; it is dead when that is below the first visible key.
  return visible_begin(rule, committed.tokens) / rule.page_tokens;
}

std::int64_t most_live_pages(const GroupRule& rule, std::int64_t tokens, std::int64_t step_tokens) {
  const std::int64_t all = pages_for(rule, tokens);
  if (rule.keep == Keep::all) return all;
  QUIRE_CHECK(rule.width >= 1, "width={}", rule.width);
  // At most width - 1 old keys and the step's own, and a run of n keys touches ceil((n - 1) / P) + 1 pages.
  const std::int64_t keys = rule.width - 1 + std::max<std::int64_t>(1, step_tokens);
  return std::min(all, ceil_div(keys - 1, rule.page_tokens) + 1);
}

}  // namespace quire::kv
