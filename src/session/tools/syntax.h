// How a model writes tool calls, read off its chat template, and the grammar of an answer that must be calls.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "quire/session.h"

namespace quire::session {

struct ToolSyntax {
  ToolFormat format = ToolFormat::none;
  // Of mistral: [TOOL_CALLS]f[ARGS]{...} per call, not one list. Of deepseek: f<｜tool▁sep｜>{...}, no
  // ```json.
  bool named_calls = false;
};

// By the markers that the template writes into a conversation; none when it has none that we parse.
ToolSyntax tool_syntax_of(std::string_view chat_template);

// The special tokens that a parser of this format must see.
std::span<const std::string_view> tool_markers(ToolFormat format);

struct CallRules {
  std::string tools;  // JSON: array of {"type":"function","function":{"name","parameters"}}
  ToolUse use = ToolUse::required;
  std::string name;  // with ToolUse::named
  bool parallel = true;
};

// A structural tag (grammar/grammar.h). Fails where the format is none, no tool fits, or a tool's parameters
// are a schema that an answer cannot be held to.
Result<std::string> call_grammar(const ToolSyntax& syntax, const CallRules& rules);

}  // namespace quire::session
