// Answer: the updates of a call's requests, into the bytes that the client gets.
//
// Two layers. Answer follows each choice (tool calls, echo, totals) and cuts what becomes known into pieces.
// A Writer puts pieces into the form of an endpoint, streamed or whole; both forms see the same pieces, so
// they say the same.
//
// Pure: no thread, no clock. One owner at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/session.h"
#include "quire/tools.h"
#include "server/api/call.h"

namespace quire::server::api {

struct AnswerHead {
  std::string id;  // without the endpoint's prefix: letters and digits
  std::int64_t created = 0;
  std::string model;
};

// What became known about one choice.
struct Piece {
  std::size_t index = 0;
  bool first = false;                 // of its choice
  std::vector<ToolEvent> events;      // text and calls, in order
  std::vector<TextLogprob> logprobs;  // of the tokens; with echo the prompt's come first
  std::string_view finish;            // stop | length | tool_calls; empty: it goes on
  bool empty() const { return events.empty() && logprobs.empty() && finish.empty(); }
};

// How one choice went, beside what OpenAI reports.
struct ChoiceEnd {
  Finish finish = Finish::none;
  std::int32_t prompt_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::string cache_miss;
  double queued_s = 0.0;
  double first_token_s = 0.0;
  double finish_s = 0.0;
};

struct Totals {
  std::int64_t prompt_tokens = 0;  // of each prompt once, whatever the number of its choices
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::vector<ChoiceEnd> choices;
};

class Writer {
 public:
  virtual ~Writer() = default;
  // What goes out now; empty from a writer of whole answers.
  virtual std::string piece(const Piece& piece) = 0;
  // The last bytes; the whole body from a writer of whole answers.
  virtual std::string end(const Totals& totals) = 0;
  // The last bytes of a stream that cannot go on; empty from a writer of whole answers.
  virtual std::string fail(const ApiError& /*error*/) { return ""; }
};

std::unique_ptr<Writer> make_completion_writer(const Call& call, AnswerHead head);
std::unique_ptr<Writer> make_chat_writer(const Call& call, AnswerHead head);
std::unique_ptr<Writer> make_response_writer(const Call& call, AnswerHead head);
std::unique_ptr<Writer> make_writer(const Call& call, AnswerHead head);

class Answer {
 public:
  // Takes the texts to echo out of the call.
  Answer(Call& call, std::unique_ptr<Writer> writer);

  // Takes what became known about a choice and returns what goes out now. REQUIRES !ended().
  std::string update(std::size_t index, TextOutput output);
  // All choices are complete, or one failed.
  bool ended() const { return open_ == 0 || failure_.has_value(); }
  // Why the answer cannot be complete. Of a stream, update() returned its last bytes.
  const Problem& failure() const { return failure_; }

 private:
  struct Choice {
    std::unique_ptr<ToolParser> parser;  // null: all text is content
    std::vector<TextLogprob> prompt;     // with echo, until the answer begins
    bool echoes = false;
    bool begun = false;
    ChoiceEnd end;
  };
  void take_prompt(Choice& choice, TextOutput& output, Piece& piece) const;
  void take_text(Choice& choice, TextOutput& output, Piece& piece) const;
  void take_end(Choice& choice, const TextOutput& output, Piece& piece);
  Totals totals() const;

  bool logprobs_ = false;
  std::size_t per_prompt_ = 1;
  std::vector<std::string> echo_texts_;  // per prompt, as Call's
  std::unique_ptr<Writer> writer_;
  std::vector<Choice> choices_;
  std::size_t open_ = 0;
  Problem failure_;
};

}  // namespace quire::server::api
