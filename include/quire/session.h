// Session: text in, text out. Tokenizer, chat template, stop strings and incremental detokenising over an
// Engine. A stop string is a finish event for the next plan: tokens past it are dropped.
// Thread rule: as Engine, one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/engine.h"
#include "quire/tools.h"

namespace quire {

struct Message {
  std::string role;  // system | user | assistant | tool
  std::string content;
};

// What generation_config.json says; each is absent when the file does not say it.
struct GenerationDefaults {
  bool do_sample = false;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
};

// What the answer's text is held to, token by token.
enum class AnswerFormat : std::uint8_t {
  text,         // anything
  json_object,  // a JSON object
  json_schema,  // JSON that TextRequest::schema (a JSON schema) accepts
  grammar,      // what TextRequest::schema (EBNF as in llama.cpp's and xgrammar's, rule `root`) derives
};

// Which tool calls the answer must hold.
enum class ToolUse : std::uint8_t {
  automatic,  // none or any: the model's choice
  required,   // one or more, and nothing else
  named,      // one of TextRequest::tool_name, and nothing else
};

// The first of these that is not empty is the prompt: ids, conversation, messages, text.
struct TextRequest {
  std::string text;
  std::vector<std::int32_t> ids;  // its tokens
  std::vector<Message> messages;  // for the chat template
  // As `quire render` takes it: {"messages", "tools", "documents", "kwargs", "add_generation_prompt"}.
  std::string conversation;
  bool add_special_tokens = true;  // for text: the tokenizer's own (BOS)
  std::int32_t max_tokens = 0;
  Sampling sampling;
  std::vector<std::string> stop;  // stop strings; not part of the answer
  bool ignore_eos = false;
  std::uint64_t sequence_index = 0;
  std::int32_t priority = 0;  // these as in Request
  double deadline_s = 0.0;
  std::string cache_salt;
  bool score = false;
  bool answer = true;
  std::int32_t score_top = 0;
  std::int32_t logprobs = -1;
  AnswerFormat format = AnswerFormat::text;
  std::string schema;
  // What prepare() made of format, schema and tools; used when not null. Copies of the request may share it.
  std::shared_ptr<const GuideMaker> guides;
  // Tools. The answer keeps the special tokens that mark tool calls in this model's format (quire/tools.h),
  // so that a ToolParser finds them. `required` and `named` hold the answer to the schemas of the
  // conversation's "tools", in the form of Session::tool_format().
  bool keep_tool_markers = false;
  ToolUse tool_use = ToolUse::automatic;
  std::string tool_name;
  bool parallel_tool_calls = true;  // with required: more than one call
};

// As TokenLogprob, with what the tokens stand for: bytes, since one token need not be whole characters.
struct TextLogprob {
  struct Likely {
    std::int32_t id = 0;
    float logprob = 0.0f;
    std::string bytes;
  };
  std::int32_t id = 0;
  float logprob = 0.0f;
  std::string bytes;
  std::vector<Likely> top;
};

struct TextOutput {
  RequestId id = 0;
  std::string text;                   // the increment: whole characters, never part of a stop string
  std::vector<std::int32_t> tokens;   // the increment
  std::vector<TextLogprob> logprobs;  // of each of them, with TextRequest::logprobs
  // Scoring: the next prompt tokens, each given those before it; the first token's log-probability is NaN and
  // it has no top.
  std::vector<TextLogprob> prompt;
  Finish finish = Finish::none;
  std::string error;               // with Finish::failed: why
  std::string guide_problem;       // as in Output: the fault of the request's format
  std::int32_t prompt_tokens = 0;  // with finish
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::string cache_miss;
  double queued_s = 0.0;       // from submit until it first ran
  double first_token_s = 0.0;  // since submit
  double finish_s = 0.0;
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const std::string& model, const Options& options);
  virtual ~Session() = default;

  virtual Engine& engine() = 0;
  virtual const GenerationDefaults& defaults() const = 0;
  virtual Result<RequestId> submit(const TextRequest& request) = 0;
  // The tokens of the prompt, or what submit() says of the request when the queue has room (Engine::check).
  virtual Result<std::vector<std::int32_t>> check(const TextRequest& request) const = 0;
  // The slow parts of submit(), on any thread and beside all other calls: renders, tokenizes, compiles the
  // grammar (milliseconds; a large schema's first time may take seconds). The result has `ids` and `guides`
  // set, and submit() takes it as it is. Of a request that was not prepared submit() does it itself.
  virtual Result<TextRequest> prepare(TextRequest request) const = 0;
  virtual void cancel(RequestId id) = 0;
  virtual bool step(std::vector<TextOutput>& outputs) = 0;

  // How this model writes tool calls; none: it was not made for tools. Any thread.
  virtual ToolFormat tool_format() const = 0;

  // These two on any thread, beside all other calls. An id that the vocabulary does not have is refused.
  virtual Result<std::vector<std::int32_t>> tokenize(std::string_view text,
                                                     bool add_special_tokens) const = 0;
  virtual Result<std::string> detokenize(const std::vector<std::int32_t>& ids,
                                         bool skip_special_tokens) const = 0;
  // The conversation through the model's chat template, with the opening of the answer.
  virtual Result<std::string> render(const std::vector<Message>& messages) const = 0;
};

}  // namespace quire
