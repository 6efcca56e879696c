// Answer: one request's text on its way out: detokenising, stop strings and the times of its tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/stop.h"

namespace quire::session {

// Not thread-safe: one per request. `tokenizer` outlives it; null: ids only, the text stays empty. `kept`:
// special tokens that are part of the text.
class Answer {
 public:
  Answer(const tokenizer::Tokenizer* tokenizer, tokenizer::StopMatcher stops,
         std::vector<tokenizer::TokenId> kept = {});

  // The text that this token makes known; empty while a character is incomplete or a stop string may begin.
  // REQUIRES !stopped().
  std::string push(std::int32_t token);
  // What was held back, when the answer ends for another reason.
  std::string flush();

  bool stopped() const { return stopped_; }  // a stop string is complete
  std::int32_t tokens() const { return tokens_; }
  double first_token_s() const { return first_token_s_; }  // since the answer was made
  double age_s() const;

 private:
  std::optional<tokenizer::Detokenizer> detokenizer_;
  tokenizer::StopMatcher stops_;
  Clock::time_point begin_ = Clock::now();
  double first_token_s_ = 0.0;
  std::int32_t tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace quire::session
