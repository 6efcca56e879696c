#include "server/api/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/limits.h"

namespace quire::server::api {
namespace {

Problem check_name(const std::string& name, const std::string& path) {
  const bool fine = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.';
  });
  if (fine) return {};
  return invalid_value(
      path, fmt::format("'{}' is {}: give letters, digits, '_', '-' and '.'", path, shown(Json(name))));
}

Problem read_function(const Json& value, const std::string& path, Json* function) {
  std::optional<std::string> name, description;
  std::optional<bool> strict;
  Json parameters{{"type", "object"}, {"properties", Json::object()}};
  FieldReader reader(value, path);
  reader.text({"name", "the function's name", true}, kFunctionBytesMax, &name);
  reader.text({"description", ""}, kDescriptionBytesMax, &description);
  reader.value({"parameters", ""}, "", keep_object(&parameters));
  reader.boolean({"strict", ""}, &strict);
  if (reader.problem()) return reader.problem();
  if (Problem problem = check_name(*name, path + ".name")) return problem;
  *function = Json{{"name", *name}};
  if (description) (*function)["description"] = *description;
  (*function)["parameters"] = std::move(parameters);
  return {};
}

Problem read_tool(const Json& value, const std::string& path, Shape shape, ToolFields* tools) {
  if (Problem problem = want_object(value, path)) return problem;
  std::optional<std::string> type;
  Json function;
  FieldReader reader(value, path);
  reader.choice({"type", "only functions are tools here", true}, {"function"}, &type);
  if (shape == Shape::nested) {
    reader.value({"function", "the function", true}, "",
                 [&](const Json& inner, const std::string& place) -> Problem {
                   if (Problem problem = want_object(inner, place)) return problem;
                   return read_function(inner, place, &function);
                 });
  }
  if (reader.problem()) return reader.problem();
  if (shape == Shape::flat) {
    if (Problem problem = read_function(value, path, &function)) return problem;
  }
  const std::string name = function["name"].get<std::string>();
  if (std::find(tools->names.begin(), tools->names.end(), name) != tools->names.end())
    return invalid_value(path, fmt::format("'{}' is a second function {}: give each once", path, name));
  tools->names.push_back(name);
  tools->tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  return {};
}

Problem read_tools(const Json& value, const std::string& path, Shape shape, ToolFields* tools) {
  if (Problem problem = want_array(value, path)) return problem;
  if (value.size() > kToolsMax)
    return invalid_value(path,
                         fmt::format("'{}' has {} tools: give at most {}", path, value.size(), kToolsMax));
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (Problem problem = read_tool(value[i], fmt::format("{}[{}]", path, i), shape, tools)) return problem;
  }
  return {};
}

Problem read_choice(const Json& value, const std::string& path, Shape shape, ToolFields* tools) {
  if (value.is_string()) {
    const auto& choice = value.get_ref<const std::string&>();
    if (choice == "auto" || choice == "none" || choice == "required") {
      tools->choice = choice;
      return {};
    }
    return invalid_value(
        path, fmt::format("'{}' is {}: give auto, none, required or a function", path, shown(value)));
  }
  if (Problem problem = want_object(value, path, "a string or an object")) return problem;
  std::optional<std::string> type, name;
  FieldReader reader(value, path);
  reader.choice({"type", "only functions are tools here", true}, {"function"}, &type);
  if (shape == Shape::flat) {
    reader.text({"name", "the function's name", true}, kFunctionBytesMax, &name);
  } else {
    reader.object({"function", "the function", true}, [&](Fields& inner) {
      inner.text({"name", "the function's name", true}, kFunctionBytesMax, &name);
    });
  }
  if (reader.problem()) return reader.problem();
  tools->choice = "named";
  tools->named = *name;
  return {};
}

Problem read_json_schema(const Json& value, const std::string& path, FormatFields* format) {
  std::optional<std::string> name, description;
  std::optional<bool> strict;
  Json schema;
  FieldReader reader(value, path);
  reader.text({"name", "a name for the schema", true}, kFunctionBytesMax, &name);
  reader.text({"description", ""}, kDescriptionBytesMax, &description);
  reader.boolean({"strict", ""}, &strict);  // the answer is always held to the schema
  reader.value({"schema", "the JSON schema", true}, "", keep_object(&schema));
  if (reader.problem()) return reader.problem();
  if (Problem problem = check_name(*name, path + ".name")) return problem;
  format->format = AnswerFormat::json_schema;
  format->schema = json_text(schema);
  return {};
}

// A schema or grammar beside a type that does not read it would be dropped without a word.
Problem check_format_parts(const Json& value, const std::string& path, Shape shape, std::string_view type) {
  const bool flat = shape == Shape::flat;
  const char* schema_at = flat ? "schema" : "json_schema";
  const std::pair<const char*, std::string_view> read_by[] = {
      {schema_at, "json_schema"}, {flat ? "json_schema" : "schema", "no type"}, {"grammar", "grammar"}};
  for (const auto& [part, reader] : read_by) {
    const auto found = value.find(part);
    if (found == value.end() || found->is_null() || type == reader) continue;
    const std::string place = fmt::format("{}.{}", path, part);
    return unsupported(place,
                       fmt::format("'{}' beside the type {} has no effect: a schema is given as '{}.{}' with "
                                   "type json_schema, a grammar as '{}.grammar' with type grammar",
                                   place, type, path, schema_at, path));
  }
  return {};
}

// As text, with limits by name.
constexpr const char* kToolsNested = R"({"type":"array","maxItems":@ToolsMax,"items":{"type":"object",
  "required":["type","function"],"properties":{"type":{"type":"string","enum":["function"]},
  "function":{"type":"object","required":["name"],"properties":{
    "name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,@FunctionBytesMax}$"},"description":{"type":["string","null"]},
    "parameters":{"type":["object","null"],"description":"a JSON schema"},"strict":{"type":["boolean","null"]}}}}}})";
constexpr const char* kToolsFlat = R"({"type":"array","maxItems":@ToolsMax,"items":{"type":"object",
  "required":["type","name"],"properties":{"type":{"type":"string","enum":["function"]},
    "name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,@FunctionBytesMax}$"},"description":{"type":["string","null"]},
    "parameters":{"type":["object","null"],"description":"a JSON schema"},"strict":{"type":["boolean","null"]}}}})";
constexpr const char* kChoiceNested = R"({"anyOf":[{"type":"string","enum":["auto","none","required"]},
  {"type":"object","required":["type","function"],"properties":{"type":{"type":"string","enum":["function"]},
   "function":{"type":"object","required":["name"],"properties":{"name":{"type":"string","maxLength":@FunctionBytesMax}}}}}]})";
constexpr const char* kChoiceFlat = R"({"anyOf":[{"type":"string","enum":["auto","none","required"]},
  {"type":"object","required":["type","name"],"properties":{"type":{"type":"string","enum":["function"]},
   "name":{"type":"string","maxLength":@FunctionBytesMax}}}]})";

constexpr const char* kFormatNested = R"({"type":"object","required":["type"],"properties":{
  "type":{"type":"string","enum":["text","json_object","json_schema","grammar"]},
  "json_schema":{"type":"object","required":["name","schema"],"description":"with type json_schema","properties":{
    "name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,@FunctionBytesMax}$"},"description":{"type":["string","null"]},
    "schema":{"type":"object"},"strict":{"type":["boolean","null"]}}},
  "grammar":{"type":"string","description":"with type grammar: EBNF with the rule root"}}})";
constexpr const char* kFormatFlat = R"({"type":"object","required":["type"],"properties":{
  "type":{"type":"string","enum":["text","json_object","json_schema","grammar"]},
  "name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,@FunctionBytesMax}$"},"description":{"type":["string","null"]},
  "schema":{"type":"object","description":"with type json_schema"},"strict":{"type":["boolean","null"]},
  "grammar":{"type":"string","description":"with type grammar: EBNF with the rule root"}}})";

struct Schemas {
  std::string tools, choice, format;
};

const Schemas& schemas_of(Shape shape) {
  static const Schemas nested{with_limits(kToolsNested), with_limits(kChoiceNested),
                              with_limits(kFormatNested)};
  static const Schemas flat{with_limits(kToolsFlat), with_limits(kChoiceFlat), with_limits(kFormatFlat)};
  return shape == Shape::flat ? flat : nested;
}

}  // namespace

void visit_tools(Fields& fields, Shape shape, ToolFields& tools) {
  const Schemas& schemas = schemas_of(shape);
  fields.value({"tools", "functions that the model may call"}, schemas.tools.c_str(),
               [&tools, shape](const Json& value, const std::string& path) {
                 return read_tools(value, path, shape, &tools);
               });
  fields.value({"tool_choice", "auto: the model's choice; required: at least one call; or one function"},
               schemas.choice.c_str(), [&tools, shape](const Json& value, const std::string& path) {
                 return read_choice(value, path, shape, &tools);
               });
  fields.boolean({"parallel_tool_calls", "more than one call in an answer; absent: true"}, &tools.parallel);
}

Problem finish_tools(const ToolFields& tools, const ModelFacts& facts, Call* call, Json* conversation) {
  const bool chosen = tools.choice == "required" || tools.choice == "named";
  if (tools.names.empty()) {
    if (chosen) return invalid_value("tool_choice", "'tool_choice' asks for a call and there are no 'tools'");
    return {};
  }
  if (tools.choice == "none") return {};
  if (tools.choice == "named" &&
      std::find(tools.names.begin(), tools.names.end(), tools.named) == tools.names.end())
    return invalid_value("tool_choice", fmt::format("'tool_choice' names {}: the tools are {}",
                                                    shown(Json(tools.named)), comma_list(tools.names)));
  if (facts.tool_format == ToolFormat::none)
    return unsupported("tools",
                       fmt::format("'tools': the chat template of {} has no form for tool calls; leave "
                                   "them out or set 'tool_choice' to none",
                                   facts.name));
  (*conversation)["tools"] = tools.tools;
  call->tools = true;
  call->tool_format = facts.tool_format;
  call->tool_names = tools.names;
  TextRequest& request = call->prompts.front();
  request.keep_tool_markers = true;
  request.parallel_tool_calls = tools.parallel.value_or(true);
  if (tools.choice == "required") request.tool_use = ToolUse::required;
  if (tools.choice == "named") {
    request.tool_use = ToolUse::named;
    request.tool_name = tools.named;
  }
  return {};
}

Problem read_format(const Json& value, const std::string& path, Shape shape, FormatFields* format) {
  if (Problem problem = want_object(value, path)) return problem;
  std::optional<std::string> type, grammar;
  FieldReader reader(value, path);
  reader.choice({"type", "the form of the answer", true}, {"text", "json_object", "json_schema", "grammar"},
                &type);
  if (reader.problem()) return reader.problem();
  if (Problem problem = check_format_parts(value, path, shape, *type)) return problem;
  if (type == "json_object") format->format = AnswerFormat::json_object;
  if (type == "json_schema") {
    if (shape == Shape::flat) return read_json_schema(value, path, format);
    reader.value({"json_schema", "name and schema", true}, "",
                 [&](const Json& inner, const std::string& place) -> Problem {
                   if (Problem problem = want_object(inner, place)) return problem;
                   return read_json_schema(inner, place, format);
                 });
  }
  if (type == "grammar") {
    reader.text({"grammar", "the grammar's text", true}, kDescriptionBytesMax, &grammar);
    format->format = AnswerFormat::grammar;
    format->schema = grammar.value_or("");
  }
  return reader.problem();
}

const char* format_schema(Shape shape) { return schemas_of(shape).format.c_str(); }

}  // namespace quire::server::api
