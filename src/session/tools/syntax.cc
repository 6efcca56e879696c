#include "session/tools/syntax.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_extent.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "session/tools/markers.h"

namespace quire::session {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHermes[] = {kHermesBegin, kHermesEnd};
constexpr std::string_view kLlama[] = {kLlamaTag};
constexpr std::string_view kMistral[] = {kMistralCalls, kMistralId, kMistralArgs};
constexpr std::string_view kDeepseek[] = {kDeepseekCallsBegin, kDeepseekCallsEnd, kDeepseekCallBegin,
                                          kDeepseekCallEnd, kDeepseekSep};

// The list, a tool, its function, parameters.
constexpr std::size_t kToolDepth = 4;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// A call's JSON, in the template's text, in a literal of it, or made by a filter.
bool has_json_call(std::string_view text) {
  if (has(text, "<function=") || has(text, "<arg_key>")) return false;
  return has(text, "\"arguments\"") || has(text, "\\\"arguments\\\"") || has(text, "'arguments'") ||
         has(text, "tool_call | tojson") || has(text, "tool_call|tojson");
}

// What stands before, between and after calls, and around the arguments of one.
struct Frame {
  std::string before, separator, after;
  std::string call_begin, name_end, call_end;
};

Frame frame_of(const ToolSyntax& syntax) {
  switch (syntax.format) {
    case ToolFormat::hermes:
      return {"",
              "\n",
              "",
              fmt::format("{}\n{{\"name\": \"", kHermesBegin),
              "\", \"arguments\": ",
              fmt::format("}}\n{}", kHermesEnd)};
    case ToolFormat::llama:
      return {"", "; ", "", "{\"name\": \"", "\", \"parameters\": ", "}"};
    case ToolFormat::mistral:
      if (syntax.named_calls) return {"", "", "", std::string(kMistralCalls), std::string(kMistralArgs), ""};
      return {fmt::format("{}[", kMistralCalls), ", ", "]", "{\"name\": \"", "\", \"arguments\": ", "}"};
    case ToolFormat::deepseek:
      if (syntax.named_calls)
        return {std::string(kDeepseekCallsBegin), "",
                std::string(kDeepseekCallsEnd),   std::string(kDeepseekCallBegin),
                std::string(kDeepseekSep),        std::string(kDeepseekCallEnd)};
      return {std::string(kDeepseekCallsBegin),
              "\n",
              std::string(kDeepseekCallsEnd),
              fmt::format("{}function{}", kDeepseekCallBegin, kDeepseekSep),
              fmt::format("\n{}\n", kDeepseekFence),
              fmt::format("\n```{}", kDeepseekCallEnd)};
    case ToolFormat::none:
      break;
  }
  return {};
}

Result<Json> tag_of(const Frame& frame, const std::string& name, const Json& function) {
  Json schema = {{"type", "object"}};
  if (function.contains("parameters") && !function["parameters"].is_null()) schema = function["parameters"];
  QUIRE_TRY_STATUS(grammar::check_schema(schema.dump(), fmt::format("parameters of tool {}: #", name)));
  // The name stands inside a JSON string, or is a word.
  return Json{{"type", "tag"},
              {"begin", frame.call_begin + name + frame.name_end},
              {"content", {{"type", "json_schema"}, {"json_schema", schema}}},
              {"end", frame.call_end}};
}

}  // namespace

ToolSyntax tool_syntax_of(std::string_view text) {
  if (has(text, kMistralCalls)) return {ToolFormat::mistral, has(text, kMistralArgs)};
  if (has(text, kDeepseekCallsBegin)) return {ToolFormat::deepseek, !has(text, kDeepseekFence)};
  // Between the same markers others write XML (<function=...>, <arg_key>...) or a bare name.
  if (has(text, kHermesBegin) && has_json_call(text)) return {ToolFormat::hermes, false};
  if (has(text, kLlamaTag) || has(text, "\"parameters\": dictionary")) return {ToolFormat::llama, false};
  return {};
}

std::span<const std::string_view> tool_markers(ToolFormat format) {
  switch (format) {
    case ToolFormat::hermes:
      return kHermes;
    case ToolFormat::llama:
      return kLlama;
    case ToolFormat::mistral:
      return kMistral;
    case ToolFormat::deepseek:
      return kDeepseek;
    case ToolFormat::none:
      break;
  }
  return {};
}

Result<std::string> call_grammar(const ToolSyntax& syntax, const CallRules& rules) {
  if (syntax.format == ToolFormat::none)
    return bad_input("this model's chat template has no form of tool calls: leave the tool choice to it");
  if (rules.tools.size() > grammar::kGrammarBytesMax ||
      json_extent(rules.tools).depth > grammar::kSchemaDepthMax + kToolDepth)
    return bad_input(
        fmt::format("the tools have {} bytes: too many to hold an answer to", rules.tools.size()));
  const Json tools = Json::parse(rules.tools, nullptr, /*allow_exceptions=*/false);
  if (!tools.is_array() || tools.empty()) return bad_input("a tool call is asked for, and there is no tool");
  const Frame frame = frame_of(syntax);
  Json tags = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      return bad_input("a tool has no function with a name");
    const std::string name = function["name"].get<std::string>();
    if (rules.use == ToolUse::named && name != rules.name) continue;
    QUIRE_TRY(tag, tag_of(frame, name, function));
    tags.push_back(std::move(tag));
  }
  if (tags.empty()) return bad_input(fmt::format("there is no tool named {}", rules.name));
  const bool one = rules.use == ToolUse::named || !rules.parallel;
  const Json calls = {{"type", "tags_with_separator"},
                      {"tags", tags},
                      {"separator", frame.separator},
                      {"at_least_one", true},
                      {"stop_after_first", one}};
  Json elements = Json::array();
  const auto literal = [](const std::string& text) {
    return Json{{"type", "const_string"}, {"value", text}};
  };
  if (!frame.before.empty()) elements.push_back(literal(frame.before));
  elements.push_back(calls);
  if (!frame.after.empty()) elements.push_back(literal(frame.after));
  const Json format = elements.size() == 1 ? calls : Json{{"type", "sequence"}, {"elements", elements}};
  return Json{{"type", "structural_tag"}, {"format", format}}.dump();
}

}  // namespace quire::session
