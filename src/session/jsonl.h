// The commands `tokenize`, `detokenize` and `render` as functions from one input line to one output line
// (JSON, without the line end). A bad line gives {"error": "..."} and the next one goes on.
#pragma once

#include <string>
#include <string_view>

#include "session/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace quire::session {

inline constexpr std::size_t kJsonLineBytesMax = 64 * 1024 * 1024;

// {"text", "add_special_tokens" (default true), "parse_special" (default true)} -> {"ids":[...]}
std::string tokenize_line(const tokenizer::Tokenizer& tokenizer, std::string_view line);

// {"ids", "skip_special_tokens" (default false)} -> {"text"}
std::string detokenize_line(const tokenizer::Tokenizer& tokenizer, std::string_view line);

// The values of bos_token and eos_token where a line does not give them.
struct TemplateTokens {
  std::string bos_token;
  std::string eos_token;
};

// What render_line reads, as inputs of a template.
Result<ChatInputs> conversation_inputs(const TemplateTokens& defaults, std::string_view conversation);

// {"messages", "tools", "documents", "kwargs", "add_generation_prompt" (default true), "bos_token",
// "eos_token", "now"} -> {"text"}
std::string render_line(const ChatTemplate& chat_template, const TemplateTokens& defaults,
                        std::string_view line);

}  // namespace quire::session
