// NumberSet: what a user picks of steps and layers: "all", "none", "7", "0,3-5", "100-".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::record {

class NumberSet {
 public:
  static NumberSet all() { return NumberSet({{0, INT64_MAX}}); }
  static NumberSet none() { return NumberSet({}); }
  static Result<NumberSet> parse(const std::string& text);
  // As the value of an option, which a refusal names; without a value, all.
  static Result<NumberSet> of_option(std::string_view option, const std::string& text);

  bool contains(std::int64_t number) const;
  // A number that was named and is over `last`; an end left open names none.
  std::optional<std::int64_t> beyond(std::int64_t last) const;
  bool empty() const { return ranges_.empty(); }

 private:
  explicit NumberSet(std::vector<std::pair<std::int64_t, std::int64_t>> ranges)
      : ranges_(std::move(ranges)) {}
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;  // first and last of each
};

}  // namespace quire::record
