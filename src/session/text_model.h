// TextModel: what a checkpoint says about text, loaded: tokenizer, chat template, end tokens, defaults.
// Needs no weights. A tokenizer or template that is absent or refused does not spoil the rest: asking for it
// returns why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "quire/session.h"
#include "session/chat_template.h"
#include "session/jsonl.h"
#include "session/tools/syntax.h"
#include "tokenizer/tokenizer.h"

namespace quire::session {

// Immutable after load; any thread may read.
class TextModel {
 public:
  // Fails when the checkpoint cannot be opened, its end tokens and sampling defaults are not sound (an answer
  // without them would run on past its end), or a file beside them is broken off.
  static Result<std::unique_ptr<TextModel>> load(const std::string& model);

  Result<const tokenizer::Tokenizer*> tokenizer() const;
  Result<const ChatTemplate*> chat_template() const;
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  const TemplateTokens& template_tokens() const { return template_tokens_; }
  // How its chat template writes tool calls.
  const ToolSyntax& tool_syntax() const { return tool_syntax_; }

 private:
  TextModel() = default;
  void load_tokenizer(const checkpoint::Checkpoint& checkpoint);
  Status load_template(const checkpoint::Checkpoint& checkpoint);
  Status load_generation(const checkpoint::Checkpoint& checkpoint);

  std::optional<tokenizer::Tokenizer> tokenizer_;
  Error no_tokenizer_;
  std::optional<ChatTemplate> template_;
  Error no_template_;
  TemplateTokens template_tokens_;
  ToolSyntax tool_syntax_;
  std::vector<std::int32_t> end_tokens_;
  GenerationDefaults defaults_;
};

}  // namespace quire::session
