#include "server/api/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "server/api/fields.h"
#include "server/api/limits.h"

namespace quire::server::api {
namespace {

Problem read_call(const Json& value, const std::string& path, std::size_t* left, Json* calls) {
  if (Problem problem = want_object(value, path)) return problem;
  std::optional<std::string> id, type, name, arguments;
  FieldReader reader(value, path);
  reader.text({"id", "the call's id", true}, kNameBytesMax, &id);
  reader.choice({"type", ""}, {"function"}, &type);
  reader.object({"function", "the function that was called", true}, [&](Fields& inner) {
    inner.text({"name", "the function's name", true}, kNameBytesMax, &name);
    inner.text({"arguments", "JSON as a string", true}, kTextBytesMax, &arguments);
  });
  if (reader.problem()) return reader.problem();
  Json given;
  if (Problem problem = read_arguments(*arguments, path + ".function.arguments", left, &given))
    return problem;
  calls->push_back(
      {{"id", *id}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", std::move(given)}}}});
  return {};
}

Problem read_calls(const Json& value, const std::string& path, std::size_t* left, Json* calls) {
  if (Problem problem = want_array(value, path)) return problem;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (Problem problem = read_call(value[i], fmt::format("{}[{}]", path, i), left, calls)) return problem;
  }
  return {};
}

struct MessageFields {
  std::optional<std::string> role, content, name, tool_call_id, refusal, reasoning;
  Json tool_calls = Json::array();
};

void visit(FieldReader& reader, std::size_t* left, MessageFields& message) {
  reader.choice({"role", "system, developer, user, assistant or tool", true},
                {"system", "developer", "user", "assistant", "tool"}, &message.role);
  reader.value({"content", ""}, "", [&](const Json& value, const std::string& path) {
    return read_content(value, path, {"text", "refusal"}, &message.content.emplace());
  });
  reader.text({"name", ""}, kNameBytesMax, &message.name);
  reader.text({"refusal", ""}, kTextBytesMax, &message.refusal);
  reader.text({"reasoning_content", ""}, kTextBytesMax, &message.reasoning);
  reader.text({"tool_call_id", ""}, kNameBytesMax, &message.tool_call_id);
  reader.value({"tool_calls", ""}, "", [&](const Json& value, const std::string& path) {
    return read_calls(value, path, left, &message.tool_calls);
  });
  reader.missing({"audio", "not here"}, {}, "give the text of the answer as 'content'");
  reader.missing({"function_call", "not here"}, {}, "give 'tool_calls'");
}

Problem check(const MessageFields& message, const std::string& path) {
  const bool assistant = message.role == "assistant";
  if (!message.tool_calls.empty() && !assistant)
    return invalid_value(
        path + ".tool_calls",
        fmt::format("'{}.tool_calls' is for the role assistant, not {}", path, *message.role));
  if (message.role == "tool" && !message.tool_call_id) {
    const std::string place = path + ".tool_call_id";
    return missing_field(place, "the id of the call that this is the result of");
  }
  const bool said = message.content || (assistant && (!message.tool_calls.empty() || message.refusal));
  if (said) return {};
  const std::string place = path + ".content";
  return missing_field(place, assistant ? "give a text or 'tool_calls'" : "give a text");
}

Problem read_message(const Json& value, const std::string& path, std::size_t* left, Json* messages) {
  if (Problem problem = want_object(value, path)) return problem;
  MessageFields message;
  FieldReader reader(value, path);
  visit(reader, left, message);
  if (reader.problem()) return reader.problem();
  if (Problem problem = check(message, path)) return problem;
  Json out;
  out["role"] = message.role == "developer" ? "system" : *message.role;
  out["content"] = message.content ? *message.content : message.refusal.value_or("");
  if (message.reasoning) out["reasoning_content"] = *message.reasoning;
  if (message.name) out["name"] = *message.name;
  if (message.tool_call_id) out["tool_call_id"] = *message.tool_call_id;
  if (!message.tool_calls.empty()) out["tool_calls"] = std::move(message.tool_calls);
  messages->push_back(std::move(out));
  return {};
}

}  // namespace

const char* messages_schema() {
  static const std::string text = with_limits(R"({"type":"array","minItems":1,"items":{"type":"object",
  "required":["role"],
  "properties":{
    "role":{"enum":["system","developer","user","assistant","tool"]},
    "content":{"anyOf":[{"type":["string","null"]},{"type":"array","minItems":1,"items":{"type":"object",
      "required":["type"],
      "properties":{"type":{"enum":["text","refusal"]},"text":{"type":"string"},"refusal":{"type":"string"}}}}],
      "description":"may be null only in an assistant's message that has tool_calls"},
    "name":{"type":["string","null"],"maxLength":@NameBytesMax},
    "refusal":{"type":["string","null"]},
    "reasoning_content":{"type":["string","null"]},
    "tool_call_id":{"type":["string","null"],"maxLength":@NameBytesMax,"description":"in a tool's message: of the call"},
    "tool_calls":{"type":["array","null"],"items":{"type":"object","required":["id","function"],"properties":{
      "id":{"type":"string","maxLength":@NameBytesMax},"type":{"enum":["function"]},
      "function":{"type":"object","required":["name","arguments"],"properties":{
        "name":{"type":"string","maxLength":@NameBytesMax},
        "arguments":{"type":"string","description":"JSON"}}}}}}}}})");
  return text.c_str();
}

Problem read_content(const Json& value, const std::string& path,
                     std::initializer_list<std::string_view> kinds, std::string* text) {
  if (value.is_string()) {
    *text = value.get<std::string>();
    return {};
  }
  if (!value.is_array() || value.empty())
    return invalid_type(path, fmt::format("'{}' is {}: give a string or parts of text", path,
                                          value.is_array() ? "an empty array" : type_name(value)));
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (Problem problem = want_object(value[i], place)) return problem;
    std::optional<std::string> type, part;
    FieldReader reader(value[i], place);
    reader.text({"type", "the part's type", true}, kNameBytesMax, &type);
    if (!reader.problem() && std::find(kinds.begin(), kinds.end(), *type) == kinds.end())
      return unsupported(place + ".type", fmt::format("'{}.type' is {}: this server reads text only ({})",
                                                      place, shown(Json(*type)), comma_list(kinds)));
    const char* name = type == "refusal" ? "refusal" : "text";
    reader.text({name, "the part's text", true}, kTextBytesMax, &part);
    if (reader.problem()) return reader.problem();
    if (i > 0) *text += "\n";
    *text += *part;
  }
  return {};
}

Problem read_arguments(const std::string& text, const std::string& path, std::size_t* left, Json* value) {
  *value = text;
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || text[begin] != '{') return {};
  if (const std::string much = too_much_json(text, left); !much.empty())
    return invalid_value(path, fmt::format("'{}' {}", path, much));
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) *value = std::move(parsed);
  return {};
}

Problem read_messages(const Json& value, const std::string& path, Json* messages) {
  if (Problem problem = want_array(value, path, "an array of messages")) return problem;
  if (value.empty())
    return invalid_value(path, fmt::format("'{}' is empty: give at least one message", path));
  *messages = Json::array();
  std::size_t left = kJsonValuesMax;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (Problem problem = read_message(value[i], fmt::format("{}[{}]", path, i), &left, messages))
      return problem;
  }
  return {};
}

}  // namespace quire::server::api
