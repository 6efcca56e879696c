#include "record/number_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace quire::record {
namespace {

constexpr std::size_t kMostRanges = 256;

bool parse_step(std::string_view text, std::int64_t& step) { return parse_number(text, &step) && step >= 0; }

bool parse_range(std::string_view text, std::int64_t& first, std::int64_t& last) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    if (!parse_step(text, first)) return false;
    last = first;
    return true;
  }
  last = INT64_MAX;
  const std::string_view end = text.substr(dash + 1);
  return parse_step(text.substr(0, dash), first) && (end.empty() || parse_step(end, last)) && first <= last;
}

}  // namespace

Result<NumberSet> NumberSet::parse(const std::string& text) {
  if (text == "all") return all();
  if (text == "none") return none();
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    std::pair<std::int64_t, std::int64_t> range;
    if (ranges.size() == kMostRanges || !parse_range(rest.substr(0, comma), range.first, range.second))
      return bad_input("not a choice of numbers: give all, none, or numbers and ranges as in 0,3-5");
    ranges.push_back(range);
    if (comma == std::string_view::npos) return NumberSet(std::move(ranges));
    rest.remove_prefix(comma + 1);
  }
}

Result<NumberSet> NumberSet::of_option(std::string_view option, const std::string& text) {
  if (text.empty()) return all();
  Result<NumberSet> set = parse(text);
  if (!set.ok()) return bad_input(fmt::format("{} {}: {}", option, text, set.error().message));
  return set;
}

bool NumberSet::contains(std::int64_t number) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const auto& range) { return number >= range.first && number <= range.second; });
}

std::optional<std::int64_t> NumberSet::beyond(std::int64_t last) const {
  for (const auto& [first, end] : ranges_) {
    if (first > last) return first;
    if (end > last && end != INT64_MAX) return end;
  }
  return std::nullopt;
}

}  // namespace quire::record
