#include "session/guides.h"

#include "session/tools/syntax.h"

namespace quire::session {

Result<grammar::Compiler*> Guides::compiler(Slot& slot, std::span<const std::string_view> markers) const {
  const auto found = model_.tokenizer();
  if (!found.ok())
    return bad_input("an answer's form needs a tokenizer, and that of the model cannot be used: use text");
  const tokenizer::Tokenizer* tokenizer = *found;
  const std::lock_guard<std::mutex> lock(slot.mutex);
  if (slot.compiler == nullptr) {
    QUIRE_TRY(made, grammar::Compiler::create(*tokenizer, model_.end_tokens(), markers));
    slot.compiler = std::move(made);
  }
  return slot.compiler.get();
}

Result<std::shared_ptr<const GuideMaker>> Guides::make(const TextRequest& request,
                                                       const std::string& tools) const {
  if (request.tool_use != ToolUse::automatic) {
    if (request.format != AnswerFormat::text)
      return bad_input("an answer that must be a tool call can have no format of its own: use text");
    QUIRE_TRY(rules, call_grammar(model_.tool_syntax(),
                                  {tools, request.tool_use, request.tool_name, request.parallel_tool_calls}));
    QUIRE_TRY(marked, compiler(with_markers_, tool_markers(model_.tool_syntax().format)));
    return marked->structural_tag(rules);
  }
  if (request.format == AnswerFormat::text) return std::shared_ptr<const GuideMaker>();
  QUIRE_TRY(plain, compiler(plain_, {}));
  switch (request.format) {
    case AnswerFormat::json_object:
      return plain->json_object();
    case AnswerFormat::json_schema:
      return plain->json_schema(request.schema);
    default:
      return plain->ebnf(request.schema);
  }
}

}  // namespace quire::session
