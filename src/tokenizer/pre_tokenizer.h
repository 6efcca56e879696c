// PreTokenizer: cuts a text into words, which BPE never merges across.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/spec.h"

namespace quire::tokenizer {

// Words of one text: ranges of `text`, which may differ from what went in (a space before it).
struct Words {
  std::string text;
  std::vector<ByteRange> ranges;
  bool in_alphabet = false;  // text is in the characters of byte_level.h, not in bytes
};

class PreTokenizer {
 public:
  // REQUIRES a byte_level step among `steps`.
  static Result<PreTokenizer> create(const std::vector<PreStep>& steps);
  // Thread-safe. Fails where a pattern exceeds its limit.
  Result<Words> cut(std::string text) const;

 private:
  struct Step {
    PreStep what;
    std::optional<Regex> regex;
  };
  Status split(const Step& step, Words& words) const;

  std::vector<Step> steps_;
};

}  // namespace quire::tokenizer
