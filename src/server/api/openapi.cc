#include "server/api/openapi.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "server/api/chat_call.h"
#include "server/api/completion_call.h"
#include "server/api/json.h"
#include "server/api/response_call.h"
#include "server/api/text_routes.h"

namespace quire::server::api {
namespace {

// What answers look like, by component name.
constexpr const char* kAnswerSchemas = R"json({
"Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object",
  "required":["message","type","param","code"],"properties":{"message":{"type":"string"},"type":{"type":"string"},
  "param":{"type":["string","null"]},"code":{"type":["string","null"]}}}}},
"Usage":{"type":"object","required":["prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details"],
  "properties":{"prompt_tokens":{"type":"integer","minimum":0},"completion_tokens":{"type":"integer","minimum":0},
  "total_tokens":{"type":"integer","minimum":0},"prompt_tokens_details":{"type":"object",
    "required":["cached_tokens"],"properties":{"cached_tokens":{"type":"integer","minimum":0}}}}},
"Own":{"type":"array","description":"this server's own: how each choice went","items":{"type":"object",
  "required":["index","finish","prompt_tokens","completion_tokens","cached_tokens","cache_miss","queued_s",
  "first_token_s","finish_s"],"properties":{"index":{"type":"integer"},
  "finish":{"enum":["stop","length","context","deadline"]},"prompt_tokens":{"type":"integer"},
  "completion_tokens":{"type":"integer"},"cached_tokens":{"type":"integer"},
  "cache_miss":{"type":"string","description":"why not more of the prompt was cached"},
  "queued_s":{"type":"number","description":"waited for a place; part of first_token_s"},
  "first_token_s":{"type":"number","description":"since the engine took the request"},
  "finish_s":{"type":"number"}}}},
"Completion":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
  "id":{"type":"string"},"object":{"const":"text_completion"},"created":{"type":"integer"},
  "model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
  "quire":{"$ref":"#/components/schemas/Own"},
  "choices":{"type":"array","items":{"type":"object","required":["index","text","logprobs","finish_reason"],
    "properties":{"index":{"type":"integer"},"text":{"type":"string"},
    "finish_reason":{"enum":["stop","length"]},
    "logprobs":{"anyOf":[{"type":"null"},{"type":"object",
      "required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{
      "tokens":{"type":"array","items":{"type":"string"}},
      "token_logprobs":{"type":"array","items":{"type":["number","null"]}},
      "top_logprobs":{"type":"array","items":{"type":["object","null"]}},
      "text_offset":{"type":"array","items":{"type":"integer"}}}}]}}}}}},
"Token":{"type":"object","required":["token","logprob","bytes"],"properties":{"token":{"type":"string"},
  "logprob":{"type":"number","maximum":0},"bytes":{"type":"array","items":{"type":"integer","minimum":0,
  "maximum":255}},"top_logprobs":{"type":"array","items":{"$ref":"#/components/schemas/Token"}}}},
"ChatCompletion":{"type":"object","required":["id","object","created","model","choices","usage"],"properties":{
  "id":{"type":"string"},"object":{"const":"chat.completion"},"created":{"type":"integer"},
  "model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
  "quire":{"$ref":"#/components/schemas/Own"},
  "choices":{"type":"array","items":{"type":"object","required":["index","message","logprobs","finish_reason"],
    "properties":{"index":{"type":"integer"},"finish_reason":{"enum":["stop","length","tool_calls"]},
    "message":{"type":"object","required":["role","content","refusal"],"properties":{
      "role":{"const":"assistant"},"content":{"type":["string","null"]},"refusal":{"type":"null"},
      "tool_calls":{"type":"array","items":{"type":"object","required":["id","type","function"],"properties":{
        "id":{"type":"string"},"type":{"const":"function"},"function":{"type":"object",
        "required":["name","arguments"],"properties":{"name":{"type":"string"},
        "arguments":{"type":"string"}}}}}}}},
    "logprobs":{"anyOf":[{"type":"null"},{"type":"object","required":["content"],"properties":{
      "content":{"type":"array","items":{"$ref":"#/components/schemas/Token"}}}}]}}}}}},
"Response":{"type":"object","required":["id","object","created_at","status","error","incomplete_details","model",
  "output","usage","tools","tool_choice","parallel_tool_calls"],"properties":{"id":{"type":"string"},
  "object":{"const":"response"},"created_at":{"type":"integer"},"status":{"enum":["completed","incomplete"]},
  "error":{"type":"null"},"model":{"type":"string"},"quire":{"$ref":"#/components/schemas/Own"},
  "incomplete_details":{"anyOf":[{"type":"null"},{"type":"object","properties":{
    "reason":{"const":"max_output_tokens"}}}]},
  "output":{"type":"array","items":{"type":"object","required":["id","type","status"],"properties":{
    "type":{"enum":["message","function_call"]},"status":{"enum":["completed","incomplete"]}}}},
  "usage":{"type":"object","required":["input_tokens","output_tokens","total_tokens"],"properties":{
    "input_tokens":{"type":"integer"},"output_tokens":{"type":"integer"},"total_tokens":{"type":"integer"}}}}},
"Model":{"type":"object","required":["id","object","created","owned_by"],"properties":{"id":{"type":"string"},
  "object":{"const":"model"},"created":{"type":"integer"},"owned_by":{"type":"string"},
  "max_model_len":{"type":"integer"}}},
"ModelList":{"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},
  "data":{"type":"array","items":{"$ref":"#/components/schemas/Model"}}}},
"Tokens":{"type":"object","required":["count","max_model_len","tokens"],"properties":{"count":{"type":"integer"},
  "max_model_len":{"type":"integer"},"tokens":{"type":"array","items":{"type":"integer"}}}},
"Text":{"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"}}}
})json";

Json reference(const std::string& name) { return Json{{"$ref", "#/components/schemas/" + name}}; }

Json json_body(const std::string& name) { return Json{{"application/json", {{"schema", reference(name)}}}}; }

// Every status that a route may answer besides 200.
void add_errors(Json& responses, bool takes_body, bool generates) {
  const auto add = [&](const char* status, const char* what, bool retry) {
    Json answer{{"description", what}, {"content", json_body("Error")}};
    if (retry) answer["headers"] = {{"Retry-After", {{"schema", {{"type", "integer"}}}}}};
    responses[status] = std::move(answer);
  };
  if (takes_body) add("400", "a field is wrong; `param` names it", false);
  add("401", "no key, or a wrong one", false);
  add("404", "no such model", false);
  if (takes_body) add("408", "the request did not arrive in time", false);
  if (takes_body) add("413", "the body is over the limit", false);
  add("431", "the head is over the limit", false);
  if (generates) add("429", "the queue is full", true);
  if (generates) add("500", "the model gave no distribution to go on from", false);
  add("503", "the server is shutting down, or has too many connections", true);
}

Json get_route(const char* what, const std::string& answer) {
  Json responses{{"200", {{"description", "fine"}, {"content", json_body(answer)}}}};
  add_errors(responses, false, false);
  return Json{{"get", {{"summary", what}, {"responses", std::move(responses)}}}};
}

Json post_route(const char* what, const std::string& request, const std::string& answer, bool generates) {
  Json content = json_body(answer);
  if (generates) content["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  Json responses{{"200", {{"description", "fine"}, {"content", std::move(content)}}}};
  add_errors(responses, true, generates);
  return Json{{"post",
               {{"summary", what},
                {"requestBody", {{"required", true}, {"content", json_body(request)}}},
                {"responses", std::move(responses)}}}};
}

}  // namespace

std::string openapi_document(const ModelFacts& facts) {
  Json document{{"openapi", "3.1.0"},
                {"info",
                 {{"title", "Quire"},
                  {"version", "1"},
                  {"description", "OpenAI-compatible API of " + facts.name +
                                      ". null is the same as absent; unknown fields are ignored."}}}};
  document["paths"] = {
      {"/v1/models", get_route("the model that is served", "ModelList")},
      {"/v1/completions", post_route("goes on with texts", "CompletionRequest", "Completion", true)},
      {"/v1/chat/completions", post_route("answers a conversation", "ChatRequest", "ChatCompletion", true)},
      {"/v1/responses",
       post_route("answers a conversation, OpenAI's newer form", "ResponseRequest", "Response", true)},
      {"/tokenize", post_route("text or conversation to token ids", "TokenizeRequest", "Tokens", false)},
      {"/detokenize", post_route("token ids to text", "DetokenizeRequest", "Text", false)}};
  Json schemas = Json::parse(kAnswerSchemas);
  schemas["CompletionRequest"] = Json::parse(completion_schema());
  schemas["ChatRequest"] = Json::parse(chat_schema());
  schemas["ResponseRequest"] = Json::parse(response_schema());
  schemas["TokenizeRequest"] = Json::parse(tokenize_schema());
  schemas["DetokenizeRequest"] = Json::parse(detokenize_schema());
  document["components"] = {{"schemas", std::move(schemas)},
                            {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  document["security"] = Json::array({Json::object(), {{"key", Json::array()}}});
  return json_text(document);
}

}  // namespace quire::server::api
