#include "session/answer.h"

#include <utility>

#include "base/check.h"

namespace quire::session {

Answer::Answer(const tokenizer::Tokenizer* tokenizer, tokenizer::StopMatcher stops,
               std::vector<tokenizer::TokenId> kept)
    : stops_(std::move(stops)) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, /*skip_special=*/true, std::move(kept));
}

std::string Answer::push(std::int32_t token) {
  QUIRE_CHECK(!stopped_, "token={} after the stop string", token);
  if (tokens_++ == 0) first_token_s_ = age_s();
  if (!detokenizer_) return "";
  tokenizer::StopStep step = stops_.push(detokenizer_->push(token));
  stopped_ = step.stop >= 0;
  return std::move(step.text);
}

std::string Answer::flush() {
  if (!detokenizer_) return "";
  tokenizer::StopStep step = stops_.push(detokenizer_->flush());
  stopped_ = step.stop >= 0;
  return stopped_ ? std::move(step.text) : std::move(step.text) + stops_.flush();
}

double Answer::age_s() const { return seconds_since(begin_); }

}  // namespace quire::session
