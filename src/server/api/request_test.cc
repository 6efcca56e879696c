// What requests may hold, for every endpoint. The fields are taken from the schemas that the same code
// writes, so a new field is met here without being named.
#include <gtest/gtest.h>

#include <tuple>

#include "server/api/request_case.h"

namespace quire::server::api {
namespace {

using testing::Endpoint;
using testing::kEndpoints;
using testing::kOneOfEachType;
using testing::read;

bool allows(const Json& schema, const std::string& type) {
  if (schema.contains("anyOf")) {
    for (const Json& one : schema["anyOf"])
      if (allows(one, type)) return true;
    return false;
  }
  if (!schema.contains("type")) return false;
  const Json& types = schema["type"];
  return types == type || (types.is_array() && std::find(types.begin(), types.end(), type) != types.end());
}

bool lists(const Json& schema, const Json& value) {
  const auto found = schema.find("enum");
  return found != schema.end() && std::find(found->begin(), found->end(), value) != found->end();
}

TEST(Request, EveryFieldRefusesEveryOtherTypeByName) {
  int met = 0;
  for (const Endpoint& endpoint : kEndpoints) {
    const Json schema = Json::parse(endpoint.schema());
    for (const auto& [name, field] : schema["properties"].items()) {
      for (const auto& [type, value] : kOneOfEachType) {
        if (allows(field, type) || (type == std::string("integer") && allows(field, "number"))) continue;
        if (lists(field, Json::parse(value))) continue;
        Json body = Json::parse(endpoint.least);
        body[name] = Json::parse(value);
        const Problem problem = read(endpoint, body);
        ASSERT_TRUE(problem) << endpoint.name << " takes " << value << " as " << name;
        EXPECT_EQ(problem->status, 400);
        EXPECT_EQ(problem->param.substr(0, name.size()), name) << value << ": " << problem->message;
        EXPECT_NE(problem->message.find("'" + problem->param), std::string::npos) << problem->message;
        ++met;
      }
    }
  }
  EXPECT_GT(met, 300);
}

TEST(Request, NullIsTheSameAsAbsent) {
  for (const Endpoint& endpoint : kEndpoints) {
    const Json schema = Json::parse(endpoint.schema());
    for (const auto& [name, field] : schema["properties"].items()) {
      Json body = Json::parse(endpoint.least);
      const bool required = body.contains(name);
      body[name] = nullptr;
      const Problem problem = read(endpoint, body);
      EXPECT_EQ(problem.has_value(), required) << endpoint.name << " " << name;
      if (required) {
        EXPECT_EQ(problem->code, "missing_required_parameter");
      }
      EXPECT_TRUE(required || allows(field, "null") || field.contains("enum")) << name << " " << field.dump();
    }
  }
}

TEST(Request, NumbersOutsideTheirRangeAreRefusedAndTheBoundsAreTaken) {
  int met = 0;
  for (const Endpoint& endpoint : kEndpoints) {
    const Json schema = Json::parse(endpoint.schema());
    for (const auto& [name, field] : schema["properties"].items()) {
      if (!field.contains("minimum")) continue;
      const auto with = [&, name = name](const Json& value) {
        Json body = Json::parse(endpoint.least);
        body[name] = value;
        const bool responses = endpoint.read == read_response;
        if (name == "top_logprobs" && responses) body["include"] = {"message.output_text.logprobs"};
        if (name == "top_logprobs" && !responses) body["logprobs"] = true;
        if (name == "max_tokens" && endpoint.read == read_completion) body["echo"] = true;
        return read(endpoint, body);
      };
      EXPECT_FALSE(with(field["minimum"])) << name;
      EXPECT_FALSE(with(field["maximum"])) << name;
      for (const char* wrong :
           {"1e300", "-1e300", "18446744073709551615", "123456789012345678901234567890"}) {
        const Problem problem = with(Json::parse(wrong));
        ASSERT_TRUE(problem) << endpoint.name << " takes " << wrong << " as " << name;
        EXPECT_EQ(problem->param, name);
      }
      const double below = field["minimum"].get<double>() - 1;
      if (std::abs(below) < 1e15) {
        EXPECT_TRUE(with(below)) << name << " takes " << below;
      }
      ++met;
    }
  }
  EXPECT_GT(met, 25);
}

TEST(Request, ChoicesAreThoseListed) {
  for (const Endpoint& endpoint : kEndpoints) {
    const Json schema = Json::parse(endpoint.schema());
    for (const auto& [name, field] : schema["properties"].items()) {
      if (!field.contains("enum")) continue;
      for (const Json& value : field["enum"]) {
        Json body = Json::parse(endpoint.least);
        body[name] = value;
        EXPECT_FALSE(read(endpoint, body)) << endpoint.name << " refuses " << value << " as " << name;
      }
      if (!allows(field, "string")) continue;
      Json body = Json::parse(endpoint.least);
      body[name] = "nothing of the kind";
      const Problem problem = read(endpoint, body);
      ASSERT_TRUE(problem) << name;
      EXPECT_EQ(problem->param, name);
    }
  }
}

// A field that one route knows is not dropped by another without a word.
TEST(Request, EveryRouteKnowsTheFieldsOfTheOthers) {
  for (std::size_t which = 0; which < std::size(kEndpoints); ++which) {
    const Json here = Json::parse(kEndpoints[which].schema())["properties"];
    for (const Endpoint& other : kEndpoints) {
      const Json there = Json::parse(other.schema())["properties"];
      for (const auto& [name, field] : there.items())
        EXPECT_TRUE(here.contains(name)) << kEndpoints[which].name << " and " << name << " of " << other.name;
    }
  }
}

// It is refused with the place where it belongs.
TEST(Request, FieldsOfAnotherRouteAreRefused) {
  const std::tuple<std::size_t, const char*, const char*, const char*> cases[] = {
      {0, "response_format", R"({"type":"json_object"})", "/v1/chat/completions"},
      {0, "tools", R"([{"type":"function"}])", "/v1/chat/completions"},
      {0, "max_completion_tokens", "5", "max_tokens"},
      {0, "top_logprobs", "2", "logprobs"},
      {1, "prompt", R"("a")", "messages"},
      {1, "max_output_tokens", "5", "max_completion_tokens"},
      {1, "echo", "true", "/v1/completions"},
      {1, "text", R"({"format":{"type":"json_object"}})", "response_format"},
      {0, "text", R"({"format":{"type":"json_object"}})", "/v1/responses"},
      {0, "reasoning", R"({"effort":"low"})", "/v1/responses"},
      {0, "tool_choice", R"("required")", "/v1/chat/completions"},
      {0, "include", R"(["message.output_text.logprobs"])", "logprobs"},
      {0, "previous_response_id", R"("resp_1")", "whole conversation"},
      {1, "suffix", R"("x")", "/v1/completions"},
      {1, "add_special_tokens", "true", "/v1/completions"},
      {1, "truncation", R"("auto")", "shorten"},
      {2, "best_of", "2", "/v1/completions"},
      {2, "function_call", R"({"name":"f"})", "tool_choice"},
      {2, "modalities", R"(["text","audio"])", "text"},
      {2, "max_tokens", "5", "max_output_tokens"},
      {2, "stop", R"(["x"])", "/v1/chat/completions"},
      {2, "seed", "1", "/v1/chat/completions"},
      {2, "n", "2", "/v1/chat/completions"},
      {2, "response_format", R"({"type":"json_object"})", "'text'"}};
  for (const auto& [which, name, value, instead] : cases) {
    Json body = Json::parse(kEndpoints[which].least);
    body[name] = Json::parse(value);
    const Problem problem = read(kEndpoints[which], body);
    ASSERT_TRUE(problem) << kEndpoints[which].name << " " << name;
    EXPECT_EQ(problem->param, name);
    EXPECT_NE(problem->message.find(instead), std::string::npos) << problem->message;
  }
  Json neutral = Json::parse(R"({"input":"a","n":1,"frequency_penalty":0.0,"logprobs":false,"stop":null})");
  EXPECT_FALSE(read(kEndpoints[2], neutral));
}

TEST(Request, ASchemaBesideATypeThatDoesNotReadItIsRefused) {
  const auto chat = [](const char* format) {
    Json body = Json::parse(kEndpoints[1].least);
    body["response_format"] = Json::parse(format);
    return read(kEndpoints[1], body);
  };
  EXPECT_FALSE(chat(R"({"type":"json_object","schema":null})"));
  for (const auto& [format, param] :
       {std::pair{R"({"type":"json_object","schema":{}})", "response_format.schema"},
        {R"({"type":"json_object","json_schema":{"name":"a","schema":{}}})", "response_format.json_schema"},
        {R"({"type":"text","grammar":"root ::= \"a\""})", "response_format.grammar"},
        {R"({"type":"grammar","grammar":"root ::= \"a\"","schema":{}})", "response_format.schema"},
        {R"({"type":"json_schema","schema":{},"json_schema":{"name":"a","schema":{}}})",
         "response_format.schema"}}) {
    const Problem problem = chat(format);
    ASSERT_TRUE(problem) << format;
    EXPECT_EQ(problem->param, param);
  }
  Json flat = Json::parse(R"({"input":"a","text":{"format":{"type":"json_object","schema":{}}}})");
  EXPECT_EQ(read(kEndpoints[2], flat)->param, "text.format.schema");
}

TEST(Request, UnknownFieldsAreIgnored) {
  for (const Endpoint& endpoint : kEndpoints) {
    Json body = Json::parse(endpoint.least);
    body["somebody_elses"] = Json::parse(R"([{"a":1}])");
    body["extra_body"] = {{"x", nullptr}};
    EXPECT_FALSE(read(endpoint, body)) << endpoint.name;
  }
}

// Ignored they would give an answer without the form, or with tokens, that the caller wanted.
TEST(Request, FieldsOfOtherServersThatChangeTheAnswerAreRefused) {
  for (const Endpoint& endpoint : kEndpoints) {
    for (const char* name :
         {"guided_json", "structured_outputs", "grammar", "stop_token_ids", "min_tokens"}) {
      Json body = Json::parse(endpoint.least);
      body[name] = nullptr;
      EXPECT_FALSE(read(endpoint, body)) << endpoint.name;
      body[name] = Json::array({1});
      const Problem problem = read(endpoint, body);
      ASSERT_TRUE(problem) << endpoint.name << " takes " << name;
      EXPECT_EQ(problem->code, "unsupported_value");
      EXPECT_EQ(problem->param, name);
    }
  }
}

// Clients send their defaults along.
TEST(Request, ValuesThatChangeNothingAreTaken) {
  const std::tuple<const char*, const char*, const char*> everywhere[] = {
      {"min_tokens", "0", "1"},
      {"stop_token_ids", "[]", "[2]"},
      {"bad_words", "[]", R"(["x"])"},
      {"grammar", "\"\"", R"("root ::= \"a\"")"},
      {"best_of", "1", "2"},
      {"functions", "[]", R"([{"name":"f"}])"},
      {"suffix", "\"\"", "\"x\""},
      {"store", "false", "true"},
      {"background", "false", "true"},
      {"truncation", R"("disabled")", R"("auto")"},
      {"modalities", R"(["text"])", R"(["text","audio"])"},
      {"function_call", R"("none")", R"({"name":"f"})"},
      {"verbosity", R"("medium")", R"("low")"}};
  const std::tuple<std::size_t, const char*, const char*, const char*> at_one[] = {
      {0, "tools", "[]", "[{}]"},
      {0, "documents", "[]", "[{}]"},
      {0, "chat_template_kwargs", "{}", R"({"a":1})"},
      {0, "response_format", R"({"type":"text"})", R"({"type":"json_object"})"},
      {0, "text", R"({"format":{"type":"text"}})", R"({"format":{"type":"text"},"verbosity":"low"})"},
      {0, "reasoning", "{}", R"({"effort":"low"})"},
      {0, "reasoning", R"({"effort":null,"summary":null})", R"({"effort":null,"summary":"auto"})"},
      {1, "reasoning", R"({"effort":null})", R"({"effort":"low"})"},
      {0, "instructions", "\"\"", "\"x\""},
      {1, "instructions", "\"\"", "\"x\""},
      {0, "tool_choice", R"("auto")", R"("required")"},
      {0, "include", "[]", R"(["message.output_text.logprobs"])"},
      {1, "text", "{}", R"({"verbosity":"low"})"},
      {1, "include", "[]", R"(["message.output_text.logprobs"])"},
      {1, "add_special_tokens", "false", "true"},
      {2, "add_special_tokens", "false", "true"},
      {2, "stop", "[]", R"(["x"])"},
      {2, "logit_bias", "{}", R"({"1":1})"},
      {2, "documents", "[]", "[{}]"},
      {2, "chat_template_kwargs", "{}", R"({"a":1})"},
      {2, "response_format", R"({"type":"text"})", R"({"type":"text","grammar":"x"})"}};
  const auto check = [](const Endpoint& endpoint, const char* name, const char* neutral, const char* other) {
    Json body = Json::parse(endpoint.least);
    body[name] = Json::parse(neutral);
    EXPECT_FALSE(read(endpoint, body)) << endpoint.name << " refuses " << neutral << " as " << name;
    body[name] = Json::parse(other);
    const Problem problem = read(endpoint, body);
    ASSERT_TRUE(problem) << endpoint.name << " takes " << other << " as " << name;
    EXPECT_EQ(problem->code, "unsupported_value");
    EXPECT_EQ(problem->param, name);
  };
  for (const Endpoint& endpoint : kEndpoints)
    for (const auto& [name, neutral, other] : everywhere) check(endpoint, name, neutral, other);
  for (const auto& [which, name, neutral, other] : at_one) check(kEndpoints[which], name, neutral, other);
}

TEST(Request, AnotherModelIsNotFound) {
  for (const Endpoint& endpoint : kEndpoints) {
    Json body = Json::parse(endpoint.least);
    body["model"] = "m";
    EXPECT_FALSE(read(endpoint, body));
    body["model"] = "gpt-5";
    const Problem problem = read(endpoint, body);
    ASSERT_TRUE(problem);
    EXPECT_EQ(problem->status, 404);
    EXPECT_EQ(problem->code, "model_not_found");
    EXPECT_NE(problem->message.find("\"m\""), std::string::npos);
  }
}

}  // namespace
}  // namespace quire::server::api
