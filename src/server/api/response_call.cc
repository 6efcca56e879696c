#include "server/api/response_call.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/call_fields.h"
#include "server/api/input_items.h"
#include "server/api/limits.h"
#include "server/api/sampling.h"
#include "server/api/tools.h"

namespace quire::server::api {
namespace {

struct ResponseFields {
  CallFields call;
  SamplingFields sampling;
  ToolFields tools;
  FormatFields format;
  Json messages = Json::array();
  std::optional<std::string> instructions, reasoning_effort;
  std::optional<std::int64_t> max_output_tokens, top_logprobs;
  bool logprobs = false;
};

Problem read_include(const Json& value, const std::string& path, ResponseFields* response) {
  if (Problem problem = want_array(value, path, "an array of strings")) return problem;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (!value[i].is_string())
      return invalid_type(place, fmt::format("'{}' is {}: give a string", place, type_name(value[i])));
    if (value[i] != "message.output_text.logprobs")
      return unsupported(place, fmt::format("'{}' is {}: only message.output_text.logprobs is here", place,
                                            shown(value[i])));
    response->logprobs = true;
  }
  return {};
}

void visit_text(Fields& fields, ResponseFields& response) {
  fields.value({"format", "the form of the answer"}, format_schema(Shape::flat),
               [&](const Json& value, const std::string& path) {
                 return read_format(value, path, Shape::flat, &response.format);
               });
  fields.missing({"verbosity", "not here; medium is taken"}, {R"("medium")"},
                 "say in a message how long the answer is to be");
}

void visit_reasoning(Fields& fields, ResponseFields& response) {
  visit_effort(fields, "effort", response.reasoning_effort);
  fields.missing({"summary", "not here"}, {}, "leave it out");
}

// Ignored they would give another answer than the caller wanted.
void visit_response_elsewhere(Fields& fields) {
  constexpr const char* kWhose = "another route's";
  constexpr const char* kChat = "use /v1/chat/completions";
  fields.missing({"messages", kWhose}, {}, "give them as 'input'");
  fields.missing({"prompt", "nothing is stored"}, {}, "send its text as 'instructions'");
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    fields.missing({name, kWhose}, {}, "use 'max_output_tokens'");
  fields.missing({"response_format", kWhose}, {R"({"type":"text"})"}, "use 'text'");
  fields.missing({"reasoning_effort", kWhose}, {}, "use 'reasoning'");
  fields.missing({"seed", kWhose}, {}, kChat);
  for (const char* name : {"stop", "documents"}) fields.missing({name, kWhose}, {"[]"}, kChat);
  for (const char* name : {"logit_bias", "chat_template_kwargs"})
    fields.missing({name, kWhose}, {"{}"}, kChat);
  fields.missing({"n", kWhose}, {"1"}, kChat);
  for (const char* name : {"frequency_penalty", "presence_penalty"})
    fields.missing({name, kWhose}, {"0"}, kChat);
  for (const char* name : {"logprobs", "echo"})
    fields.missing({name, kWhose}, {"false"},
                   "see 'include', or use /v1/chat/completions or /v1/completions");
  fields.missing({"add_special_tokens", "the chat template's own; false is taken"}, {"false"},
                 "use /v1/completions");
}

void visit(Fields& fields, ResponseFields& response) {
  visit_model(fields, response.call);
  fields.value({"input", "a text or the items of the conversation", true}, input_schema(),
               [&](const Json& value, const std::string& path) {
                 return read_input(value, path, &response.messages);
               });
  fields.text({"instructions", "a system message before the input"}, kTextBytesMax, &response.instructions);
  fields.integer({"max_output_tokens", "of the answer; absent: as many as the context leaves"}, 1, kTokensMax,
                 &response.max_output_tokens);
  fields.object({"text", "what the answer's text is held to"},
                [&](Fields& inner) { visit_text(inner, response); });
  fields.object({"reasoning", "for chat templates that read reasoning_effort"},
                [&](Fields& inner) { visit_reasoning(inner, response); });
  fields.value(
      {"include", "more in the answer"},
      R"({"type":"array","items":{"type":"string","enum":["message.output_text.logprobs"]}})",
      [&](const Json& value, const std::string& path) { return read_include(value, path, &response); });
  fields.integer({"top_logprobs", "with include: most likely tokens per place"}, 0, kLogprobsMax,
                 &response.top_logprobs);
  visit_tools(fields, Shape::flat, response.tools);
  visit_stream(fields, response.call);
  visit_temperature(fields, response.sampling);
  visit_own_sampling(fields, response.sampling);
  visit_missing(fields);
  visit_response_elsewhere(fields);
  visit_elsewhere(fields);
  visit_notes(fields);
}

// What the answer repeats of the request, as OpenAI's does.
std::string repeated_fields(const Json& body, const ResponseFields& response, const TextRequest& request) {
  const auto given = [&](const char* name, const Json& other) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? other : *found;
  };
  Json out;
  out["instructions"] = given("instructions", nullptr);
  out["max_output_tokens"] = given("max_output_tokens", nullptr);
  out["metadata"] = given("metadata", Json::object());
  out["parallel_tool_calls"] = response.tools.parallel.value_or(true);
  out["previous_response_id"] = nullptr;
  out["reasoning"] = Json{{"effort", nullptr}, {"summary", nullptr}};
  if (response.reasoning_effort) out["reasoning"]["effort"] = *response.reasoning_effort;
  out["store"] = false;
  out["temperature"] = request.sampling.temperature;
  out["text"] = given("text", Json{{"format", {{"type", "text"}}}});
  if (!out["text"].contains("format")) out["text"]["format"] = Json{{"type", "text"}};
  out["tool_choice"] = given("tool_choice", "auto");
  out["tools"] = given("tools", Json::array());
  out["top_logprobs"] = response.top_logprobs.value_or(0);
  out["top_p"] = request.sampling.top_p;
  out["truncation"] = "disabled";
  out["user"] = given("user", nullptr);
  return json_text(out);
}

}  // namespace

Problem read_response(const Json& body, const ModelFacts& facts, Call* call) {
  ResponseFields response;
  if (Problem problem = read_fields(body, &response)) return problem;
  if (Problem problem = finish_fields(response.call, facts, call)) return problem;
  if (response.top_logprobs && !response.logprobs)
    return invalid_value("top_logprobs",
                         "'top_logprobs' needs 'include' with message.output_text.logprobs: add it");
  if (response.logprobs && !response.tools.names.empty() && response.tools.choice != "none")
    return unsupported("include",
                       "'include' asks for log-probabilities beside 'tools': a call's tokens have no "
                       "place for them here; use /v1/chat/completions");
  call->kind = Call::Kind::response;
  call->include_usage = true;
  call->logprobs = response.logprobs;
  call->draws_seed = true;
  TextRequest& request = call->prompts.emplace_back();
  apply(response.sampling, facts.defaults, &request);
  request.max_tokens = static_cast<std::int32_t>(response.max_output_tokens.value_or(0));
  if (response.logprobs) request.logprobs = static_cast<std::int32_t>(response.top_logprobs.value_or(0));
  request.format = response.format.format;
  request.schema = std::move(response.format.schema);
  Json messages = Json::array();
  if (response.instructions) messages.push_back({{"role", "system"}, {"content", *response.instructions}});
  for (Json& message : response.messages) messages.push_back(std::move(message));
  Json conversation{{"messages", std::move(messages)}};
  if (Problem problem = finish_tools(response.tools, facts, call, &conversation)) return problem;
  if (response.reasoning_effort) conversation["kwargs"]["reasoning_effort"] = *response.reasoning_effort;
  request.conversation = json_text(conversation);
  if (Problem problem = check_prompt_size(request, "input", facts)) return problem;
  call->repeated = repeated_fields(body, response, request);
  return {};
}

std::string response_schema() { return schema_of<ResponseFields>(); }

}  // namespace quire::server::api
