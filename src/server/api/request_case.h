// What the tests of requests share: the endpoints, each read as the server reads it, and a value of each
// type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/api/chat_call.h"
#include "server/api/completion_call.h"
#include "server/api/json.h"
#include "server/api/response_call.h"

namespace quire::server::api::testing {

struct Endpoint {
  const char* name;
  Problem (*read)(const Json& body, const ModelFacts& facts, Call* call);
  std::string (*schema)();
  const char* least;  // a body with the required fields alone
};

inline const Endpoint kEndpoints[] = {
    {"completions", read_completion, completion_schema, R"({"prompt":"a"})"},
    {"chat", read_chat, chat_schema, R"({"messages":[{"role":"user","content":"a"}]})"},
    {"responses", read_response, response_schema, R"({"input":"a"})"},
};

inline ModelFacts facts() {
  ModelFacts facts{.name = "m"};
  facts.tool_format = ToolFormat::hermes;
  return facts;
}

inline Problem read(const Endpoint& endpoint, const Json& body, Call* call = nullptr) {
  Call unused;
  return endpoint.read(body, facts(), call == nullptr ? &unused : call);
}

inline Problem read_text(const Endpoint& endpoint, const std::string& text) {
  Json body;
  if (Problem problem = parse_body(text, &body)) return problem;
  return read(endpoint, body);
}

inline const std::pair<const char*, const char*> kOneOfEachType[] = {
    {"boolean", "true"}, {"integer", "3"},  {"number", "0.5"},
    {"string", "\"x\""}, {"array", "[{}]"}, {"object", "{}"},
};

}  // namespace quire::server::api::testing
