// Detokenizer: the text that each further token adds to an answer. Text is held back while it ends in a
// part of a character (or in what cannot be one), so that no reader ever sees half of it; what is held comes
// with the token that completes it, or as U+FFFD from flush() at the end. All pieces joined are what
// Tokenizer::decode says of all ids.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace quire::tokenizer {

// Not thread-safe: one per sequence. The tokenizer outlives it.
class Detokenizer {
 public:
  // `kept`: special tokens that are not skipped.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special, std::vector<TokenId> kept = {});

  // The text that is complete with this token; empty while a character is not. An id outside the
  // vocabulary adds nothing.
  std::string push(TokenId id);
  // What is still held, with U+FFFD for what is not UTF-8. Afterwards the detokenizer is as new.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<TokenId> kept_;
  std::string held_;  // raw bytes; bounded: a long run of broken bytes is given out as U+FFFD
};

}  // namespace quire::tokenizer
