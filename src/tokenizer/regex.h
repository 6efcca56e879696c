// Regex: the patterns of tokenizer.json, written for Oniguruma, on PCRE2's JIT. Differences that matter are
// translated (\s is White_Space, \h a hex digit) or refused (set operations and nested classes).
//
// Patterns are untrusted. Their length is bounded, and a match that takes more than its limit is an error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace quire::tokenizer {

inline constexpr std::size_t kPatternBytesMax = 16 * 1024;

class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);
  // Matches this text itself.
  static Result<Regex> literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // All matches from left to right, apart, in `text` alone (look-around sees nothing outside). Thread-safe.
  Status find_all(std::string_view text, std::vector<ByteRange>& out) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::tokenizer
