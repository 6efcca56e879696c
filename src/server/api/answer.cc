#include "server/api/answer.h"

#include <utility>

#include "base/check.h"

namespace quire::server::api {
namespace {

// Why a choice that ended so is no answer. What the request's own grammar brought about is no error of the
// server: a client that tries such again would get the same.
Problem failure_of(const TextOutput& output) {
  if (output.finish == Finish::failed && !output.guide_problem.empty())
    return invalid_value("", "the form that the answer is held to: " + output.guide_problem);
  if (output.finish == Finish::failed) return ApiError{500, output.error, "", "generation_failed", 0.0};
  if (output.finish == Finish::cancelled)
    return ApiError{503, "the server is shutting down and could not complete the answer: send it again", "",
                    "shutting_down", 1.0};
  return {};
}

std::string_view reason_of(Finish finish, bool calls) {
  if (finish != Finish::stop) return "length";  // the asked-for number, the context or the deadline
  return calls ? "tool_calls" : "stop";
}

}  // namespace

std::unique_ptr<Writer> make_writer(const Call& call, AnswerHead head) {
  switch (call.kind) {
    case Call::Kind::completion:
      return make_completion_writer(call, std::move(head));
    case Call::Kind::chat:
      return make_chat_writer(call, std::move(head));
    case Call::Kind::response:
      return make_response_writer(call, std::move(head));
  }
  return nullptr;
}

Answer::Answer(Call& call, std::unique_ptr<Writer> writer)
    : logprobs_(call.logprobs),
      per_prompt_(static_cast<std::size_t>(call.choices)),
      echo_texts_(std::move(call.echo_texts)),
      writer_(std::move(writer)),
      choices_(call.size()),
      open_(call.size()) {
  for (Choice& choice : choices_) {
    if (call.tools) choice.parser = ToolParser::make(call.tool_format, call.tool_names);
    choice.echoes = call.echo;
  }
}

void Answer::take_prompt(Choice& choice, TextOutput& output, Piece& piece) const {
  if (!choice.echoes) return;
  for (TextLogprob& token : output.prompt) choice.prompt.push_back(std::move(token));
  if (output.tokens.empty() && output.finish == Finish::none) return;
  std::string text = echo_texts_[piece.index / per_prompt_];
  if (text.empty()) {
    for (const TextLogprob& token : choice.prompt) text += token.bytes;
  }
  piece.events.push_back({.text = std::move(text)});
  if (logprobs_) piece.logprobs = std::move(choice.prompt);
  choice.prompt.clear();
  choice.echoes = false;
}

void Answer::take_text(Choice& choice, TextOutput& output, Piece& piece) const {
  if (logprobs_) {
    for (TextLogprob& token : output.logprobs) piece.logprobs.push_back(std::move(token));
  }
  if (choice.parser == nullptr) {
    if (!output.text.empty()) piece.events.push_back({.text = std::move(output.text)});
    return;
  }
  choice.parser->push(output.text, piece.events);
  if (output.finish != Finish::none) choice.parser->finish(piece.events);
}

void Answer::take_end(Choice& choice, const TextOutput& output, Piece& piece) {
  const bool calls = choice.parser != nullptr && choice.parser->calls() > 0;
  piece.finish = reason_of(output.finish, calls);
  choice.end = {.finish = output.finish,
                .prompt_tokens = output.prompt_tokens,
                .completion_tokens = output.completion_tokens,
                .cached_tokens = output.cached_tokens,
                .cache_miss = output.cache_miss,
                .queued_s = output.queued_s,
                .first_token_s = output.first_token_s,
                .finish_s = output.finish_s};
  --open_;
}

std::string Answer::update(std::size_t index, TextOutput output) {
  QUIRE_CHECK(index < choices_.size() && !ended(), "index={} of {}, open={}", index, choices_.size(), open_);
  if (Problem failure = failure_of(output)) {
    failure_ = std::move(failure);
    return writer_->fail(*failure_);
  }
  Choice& choice = choices_[index];
  Piece piece{.index = index, .first = !choice.begun};
  take_prompt(choice, output, piece);
  take_text(choice, output, piece);
  if (output.finish != Finish::none) take_end(choice, output, piece);
  if (piece.empty()) return "";
  choice.begun = true;
  std::string bytes = writer_->piece(piece);
  if (open_ == 0) bytes += writer_->end(totals());
  return bytes;
}

Totals Answer::totals() const {
  Totals totals;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const ChoiceEnd& end = choices_[i].end;
    totals.completion_tokens += end.completion_tokens;
    if (i % per_prompt_ == 0) {
      totals.prompt_tokens += end.prompt_tokens;
      totals.cached_tokens += end.cached_tokens;
    }
    totals.choices.push_back(end);
  }
  return totals;
}

}  // namespace quire::server::api
