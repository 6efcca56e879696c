// Normalizer: the steps that change the text before it is cut into words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/spec.h"

namespace quire::tokenizer {

class Normalizer {
 public:
  static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);
  bool empty() const { return steps_.empty(); }
  // Thread-safe. Fails where a pattern exceeds its limit or the text would grow past kNormalizedBytesMax.
  Result<std::string> apply(std::string_view text) const;

 private:
  struct Step {
    NormalizerStep what;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

inline constexpr std::size_t kNormalizedBytesMax = 1 << 30;

}  // namespace quire::tokenizer
