// ChatTemplate: a model's Jinja chat template, which turns messages into the text of a prompt.
//
// A template comes with the model and is untrusted: its size and tokens are bounded before parsing; depth,
// steps, ranges and text are bounded while it runs (cmake/patches/jinja-limits.patch says where). A
// template that does not parse is refused here; the rest of the model goes on without it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace quire::session {

inline constexpr std::size_t kTemplateBytesMax = 256 * 1024;
inline constexpr std::size_t kTemplateTokensMax = 20'000;
inline constexpr std::size_t kTemplateInputBytesMax = 64 * 1024 * 1024;

// JSON texts; an empty one is absent (none in the template).
struct ChatInputs {
  std::string messages;   // array of {"role", "content", ...}
  std::string tools;      // array
  std::string documents;  // array
  std::string kwargs;     // object: further variables, which may not replace the ones here
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::string now;  // what strftime_now sees, "2026-03-05T09:07:00"; empty: the local time of the call
};

struct RenderedChat {
  std::string text;
  // The parts of `text` that came from the inputs, sorted, apart: give them to EncodeOptions::plain so
  // that a special token that a user writes stays text.
  std::vector<tokenizer::ByteRange> user;
};

// Immutable; render may be called from several threads at once.
class ChatTemplate {
 public:
  // `name` is for messages ("tokenizer.chat_template of the file", a path).
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Fails with the template's own message (raise_exception), with a limit, or with what is wrong in the
  // inputs.
  Result<RenderedChat> render(const ChatInputs& inputs) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace quire::session
