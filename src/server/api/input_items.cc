#include "server/api/input_items.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/fields.h"
#include "server/api/limits.h"
#include "server/api/messages.h"

namespace quire::server::api {
namespace {

Problem read_item_message(const Json& value, const std::string& path, Json* messages) {
  std::optional<std::string> role, content;
  FieldReader reader(value, path);
  reader.choice({"role", "system, developer, user or assistant", true},
                {"system", "developer", "user", "assistant"}, &role);
  reader.value({"content", "the message's text", true}, "", [&](const Json& inner, const std::string& place) {
    return read_content(inner, place, {"input_text", "output_text", "text", "refusal"}, &content.emplace());
  });
  if (reader.problem()) return reader.problem();
  messages->push_back({{"role", role == "developer" ? "system" : *role}, {"content", *content}});
  return {};
}

Problem read_item_call(const Json& value, const std::string& path, std::size_t* left, Json* messages) {
  std::optional<std::string> call_id, name, arguments;
  FieldReader reader(value, path);
  reader.text({"call_id", "the call's id", true}, kNameBytesMax, &call_id);
  reader.text({"name", "the function's name", true}, kNameBytesMax, &name);
  reader.text({"arguments", "JSON as a string", true}, kTextBytesMax, &arguments);
  if (reader.problem()) return reader.problem();
  Json given;
  if (Problem problem = read_arguments(*arguments, path + ".arguments", left, &given)) return problem;
  if (messages->empty() || messages->back()["role"] != "assistant")
    messages->push_back({{"role", "assistant"}, {"content", ""}});
  messages->back()["tool_calls"].push_back(
      {{"id", *call_id},
       {"type", "function"},
       {"function", {{"name", *name}, {"arguments", std::move(given)}}}});
  return {};
}

Problem read_item_result(const Json& value, const std::string& path, Json* messages) {
  std::optional<std::string> call_id, output;
  FieldReader reader(value, path);
  reader.text({"call_id", "the id of the call", true}, kNameBytesMax, &call_id);
  reader.value({"output", "the call's result", true}, "", [&](const Json& inner, const std::string& place) {
    return read_content(inner, place, {"input_text", "output_text", "text"}, &output.emplace());
  });
  if (reader.problem()) return reader.problem();
  messages->push_back({{"role", "tool"}, {"content", *output}, {"tool_call_id", *call_id}});
  return {};
}

Problem read_item(const Json& value, const std::string& path, std::size_t* left, Json* messages) {
  if (Problem problem = want_object(value, path)) return problem;
  std::optional<std::string> type;
  FieldReader reader(value, path);
  reader.choice({"type", "message, function_call or function_call_output"},
                {"message", "function_call", "function_call_output"}, &type);
  if (reader.problem()) return reader.problem();
  if (type == "function_call") return read_item_call(value, path, left, messages);
  if (type == "function_call_output") return read_item_result(value, path, messages);
  return read_item_message(value, path, messages);
}

}  // namespace

const char* input_schema() {
  static const std::string text = with_limits(R"({"anyOf":[{"type":"string","minLength":1},
  {"type":"array","minItems":1,"items":{"anyOf":[
    {"type":"object","required":["role","content"],"properties":{
      "type":{"enum":["message"]},"role":{"enum":["system","developer","user","assistant"]},
      "content":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"object",
        "required":["type","text"],"properties":{"type":{"enum":["input_text","output_text","text"]},
        "text":{"type":"string"}}}}]}}},
    {"type":"object","required":["type","call_id","name","arguments"],"properties":{
      "type":{"enum":["function_call"]},"call_id":{"type":"string","maxLength":@NameBytesMax},
      "name":{"type":"string","maxLength":@NameBytesMax},"arguments":{"type":"string","description":"JSON"}}},
    {"type":"object","required":["type","call_id","output"],"properties":{
      "type":{"enum":["function_call_output"]},"call_id":{"type":"string","maxLength":@NameBytesMax},
      "output":{"type":"string"}}}]}}]})");
  return text.c_str();
}

Problem read_input(const Json& value, const std::string& path, Json* messages) {
  if (value.is_string()) {
    if (value.get_ref<const std::string&>().empty())
      return invalid_value(path, fmt::format("'{}' is empty: give at least one character", path));
    messages->push_back({{"role", "user"}, {"content", value}});
    return {};
  }
  if (!value.is_array() || value.empty())
    return invalid_type(path, fmt::format("'{}' is {}: give a string or items", path,
                                          value.is_array() ? "an empty array" : type_name(value)));
  std::size_t left = kJsonValuesMax;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (Problem problem = read_item(value[i], fmt::format("{}[{}]", path, i), &left, messages))
      return problem;
  }
  return {};
}

}  // namespace quire::server::api
