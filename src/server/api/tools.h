// Tools and the form of an answer: from OpenAI's fields to a TextRequest's.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/api/call.h"
#include "server/api/fields.h"
#include "server/api/json.h"

namespace quire::server::api {

// /v1/chat/completions has the function of a tool, and the schema of a format, in an object of their own;
// /v1/responses has their fields beside "type".
enum class Shape : std::uint8_t { nested, flat };

struct ToolFields {
  Json tools = Json::array();  // in the nested shape
  std::vector<std::string> names;
  std::string choice = "auto";  // auto | none | required | named
  std::string named;            // the function, with choice named
  std::optional<bool> parallel;
};

// tools, tool_choice and parallel_tool_calls.
void visit_tools(Fields& fields, Shape shape, ToolFields& tools);
// Into the prompt and the conversation. Refuses a choice without tools, a name that is not a tool's, and
// tools for a model that was not made for them.
Problem finish_tools(const ToolFields& tools, const ModelFacts& facts, Call* call, Json* conversation);

struct FormatFields {
  AnswerFormat format = AnswerFormat::text;
  std::string schema;
};

// {"type":"text"|"json_object"|"json_schema"|"grammar", ...}
Problem read_format(const Json& value, const std::string& path, Shape shape, FormatFields* format);
const char* format_schema(Shape shape);

}  // namespace quire::server::api
