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

struct TextRequest {
  std::string text;                // the prompt, or
  std::vector<std::int32_t> ids;   // its tokens (used when not empty), or
  std::vector<Message> messages;   // a conversation for the chat template (used when not empty)
  bool add_special_tokens = true;  // for text: the tokenizer's own (BOS)
  std::int32_t max_tokens = 0;
  Sampling sampling;
  std::vector<std::string> stop;  // stop strings; not part of the answer
  bool ignore_eos = false;
  std::uint64_t sequence_index = 0;
  std::int32_t priority = 0;  // these three as in Request
  double deadline_s = 0.0;
  std::string cache_salt;
};

struct TextOutput {
  RequestId id = 0;
  std::string text;                  // the increment: whole characters, never part of a stop string
  std::vector<std::int32_t> tokens;  // the increment
  Finish finish = Finish::none;
  std::string error;               // with Finish::failed: why
  std::int32_t prompt_tokens = 0;  // with finish
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::string cache_miss;
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
  virtual void cancel(RequestId id) = 0;
  virtual bool step(std::vector<TextOutput>& outputs) = 0;

  virtual Result<std::vector<std::int32_t>> tokenize(std::string_view text,
                                                     bool add_special_tokens) const = 0;
  virtual Result<std::string> detokenize(const std::vector<std::int32_t>& ids,
                                         bool skip_special_tokens) const = 0;
  // The conversation through the model's chat template, with the opening of the answer.
  virtual Result<std::string> render(const std::vector<Message>& messages) const = 0;
};

}  // namespace quire
