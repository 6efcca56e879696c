// What requests may hold, for every endpoint. The fields are taken from the schemas that the same code
// writes, so a new field is met here without being named.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <tuple>

#include "server/api/chat_call.h"
#include "server/api/completion_call.h"
#include "server/api/json.h"
#include "server/api/response_call.h"

namespace quire::server::api {
namespace {

struct Endpoint {
  const char* name;
  Problem (*read)(const Json& body, const ModelFacts& facts, Call* call);
  std::string (*schema)();
  const char* least;  // a body with the required fields alone
};

const Endpoint kEndpoints[] = {
    {"completions", read_completion, completion_schema, R"({"prompt":"a"})"},
    {"chat", read_chat, chat_schema, R"({"messages":[{"role":"user","content":"a"}]})"},
    {"responses", read_response, response_schema, R"({"input":"a"})"},
};

ModelFacts facts() {
  ModelFacts facts{.name = "m"};
  facts.tool_format = ToolFormat::hermes;
  return facts;
}

Problem read(const Endpoint& endpoint, const Json& body, Call* call = nullptr) {
  Call unused;
  return endpoint.read(body, facts(), call == nullptr ? &unused : call);
}

Problem read_text(const Endpoint& endpoint, const std::string& text) {
  Json body;
  if (Problem problem = parse_body(text, &body)) return problem;
  return read(endpoint, body);
}

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

const std::pair<const char*, const char*> kOneOfEachType[] = {
    {"boolean", "true"}, {"integer", "3"},  {"number", "0.5"},
    {"string", "\"x\""}, {"array", "[{}]"}, {"object", "{}"},
};

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

TEST(Request, BrokenBodiesAreRefused) {
  for (const char* text :
       {"", " ", "{", "[]", "3", "null", "\"x\"", "{\"prompt\":}", "{\"prompt\":\"a\"}}",
        "{\"prompt\":\"a\",}", "{'prompt':1}", "{\"prompt\":NaN}", "{\"prompt\":1e999}",
        "{\"prompt\":\"\xff\"}", "{\"prompt\":\"\xc3\"}", "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"\xed\xa0\x80\"}", "{\"prompt\":\"\x01\"}", "\xef\xbb\xbf\xef\xbb\xbf{}"}) {
    const Problem problem = read_text(kEndpoints[0], text);
    ASSERT_TRUE(problem) << text;
    EXPECT_EQ(problem->status, 400) << text;
  }
}

TEST(Request, DepthAndNumberOfValuesAreBoundedBeforeAnythingIsBuilt) {
  const auto nested = [](std::size_t depth, char open, char close) {
    const std::string key = open == '{' ? "\"a\":" : "";
    std::string text = "{\"prompt\":\"a\",\"x\":";
    for (std::size_t i = 0; i < depth; ++i) text += open + key;
    text += "1";
    return text + std::string(depth, close) + "}";
  };
  EXPECT_FALSE(read_text(kEndpoints[0], nested(kJsonDepthMax - 1, '[', ']')));
  for (const std::size_t depth : {kJsonDepthMax, std::size_t{100'000}, std::size_t{5'000'000}}) {
    for (const auto& [open, close] : {std::pair{'[', ']'}, std::pair{'{', '}'}}) {
      const Problem problem = read_text(kEndpoints[0], nested(depth, open, close));
      ASSERT_TRUE(problem) << depth;
      EXPECT_NE(problem->message.find("nested"), std::string::npos);
    }
  }
  // Brackets inside a text are text.
  EXPECT_FALSE(read_text(kEndpoints[0], R"({"prompt":")" + std::string(1000, '[') + R"(\"[[[["})"));
  std::string many = "{\"prompt\":[0";
  for (std::size_t i = 0; i < kJsonValuesMax; ++i) many += ",0";
  const Problem problem = read_text(kEndpoints[0], many + "]}");
  ASSERT_TRUE(problem);
  EXPECT_NE(problem->message.find("values"), std::string::npos);
}

// An object that keeps its order compares each name with all before it: a body of names alone would take
// minutes.
TEST(Request, MembersOfAnObjectAreBounded) {
  const auto with = [](std::size_t members) {
    std::string text = R"({"prompt":"a")";
    for (std::size_t i = 1; i < members; ++i) text += fmt::format(R"(,"x{}":[{{"a":1}}])", i);
    return text + "}";
  };
  EXPECT_FALSE(read_text(kEndpoints[0], with(kJsonMembersMax)));
  for (const std::size_t members : {kJsonMembersMax + 1, std::size_t{300'000}}) {
    const Problem problem = read_text(kEndpoints[0], with(members));
    ASSERT_TRUE(problem) << members;
    EXPECT_NE(problem->message.find("2048"), std::string::npos) << problem->message;
  }
  // Colons inside a text are text, and many objects are no large one.
  std::string fine = R"({"prompt":"a","x":[{})";
  for (std::size_t i = 0; i < kJsonMembersMax; ++i) fine += R"(,{"a":":::"})";
  EXPECT_FALSE(read_text(kEndpoints[0], fine + "]}"));
}

// The arguments of a call are JSON in a string: the body's limits do not see them.
TEST(Request, ArgumentsOfCallsAreBoundedAsTheBodyIs) {
  const auto nested = [](std::size_t depth) {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += "{\"a\":";
    return text + "1" + std::string(depth, '}');
  };
  const auto in_chat = [](const std::string& arguments) {
    return Json{
        {"messages",
         {{{"role", "user"}, {"content", "a"}},
          {{"role", "assistant"},
           {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}}};
  };
  const auto in_response = [](const std::string& arguments) {
    return Json{
        {"input", {{{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", arguments}}}}};
  };
  for (const std::string& fine : {nested(kJsonDepthMax), std::string("{"), std::string(100'000, '[')}) {
    EXPECT_FALSE(read(kEndpoints[1], in_chat(fine))) << fine.substr(0, 20);
    EXPECT_FALSE(read(kEndpoints[2], in_response(fine))) << fine.substr(0, 20);
  }
  for (const std::string& wrong : {nested(kJsonDepthMax + 1), " \n" + nested(1'000'000)}) {
    const Problem chat = read(kEndpoints[1], in_chat(wrong));
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->param, "messages[1].tool_calls[0].function.arguments");
    EXPECT_NE(chat->message.find("at most 64"), std::string::npos) << chat->message;
    const Problem response = read(kEndpoints[2], in_response(wrong));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->param, "input[0].arguments");
  }
}

// Each alone is within the limit; together they would take the memory of ten bodies.
TEST(Request, TheArgumentsOfAllCallsOfABodyAreCountedTogether) {
  const auto arguments = [](std::size_t values) {  // those of the object, its array and what is in it
    std::string text = "{\"a\":[0";
    for (std::size_t i = 3; i < values; ++i) text += ",0";
    return text + "]}";
  };
  const std::string half = arguments(kJsonValuesMax / 2), one = arguments(3);
  const auto in_chat = [](const std::vector<std::string>& all) {
    Json body = Json::parse(kEndpoints[1].least);
    for (const std::string& text : all)  // in messages of their own
      body["messages"].push_back(
          {{"role", "assistant"},
           {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", text}}}}}}});
    return body;
  };
  const auto in_response = [](const std::vector<std::string>& all) {
    Json body;
    for (const std::string& text : all)
      body["input"].push_back(
          {{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", text}});
    return body;
  };
  const auto read = [](const Endpoint& endpoint, const Json& body) {
    ModelFacts large = facts();
    large.max_context = 1 << 20;
    Call call;
    return endpoint.read(body, large, &call);
  };
  EXPECT_FALSE(read(kEndpoints[1], in_chat({half, half})));
  EXPECT_FALSE(read(kEndpoints[2], in_response({half, half})));
  const Problem chat = read(kEndpoints[1], in_chat({half, half, one}));
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->param, "messages[3].tool_calls[0].function.arguments");
  EXPECT_NE(chat->message.find("holds 3 values and those before it 1048576"), std::string::npos)
      << chat->message;
  const Problem response = read(kEndpoints[2], in_response({half, one, half}));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->param, "input[2].arguments");
}

// Every prefix of a body, and bodies with random bytes changed, end in an answer or an error.
TEST(Request, CutAndMutatedBodiesNeverCrash) {
  std::mt19937 random(7);
  const std::string bodies[] = {
      R"({"prompt":["a",[1,2]],"logit_bias":{"5":1},"stop":["x","y"],"stream":true,"stream_options":{"include_usage":true}})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"é"}]},{"role":"assistant","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],
        "tool_choice":{"type":"function","function":{"name":"f"}},"response_format":{"type":"json_schema",
        "json_schema":{"name":"n","schema":{}}}})",
      R"({"input":[{"role":"user","content":"a"},{"type":"function_call","call_id":"1","name":"f","arguments":""},
        {"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"x"}]}],
        "text":{"format":{"type":"json_object"}},"tools":[{"type":"function","name":"f"}]})"};
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_FALSE(read_text(kEndpoints[i], bodies[i])) << read_text(kEndpoints[i], bodies[i])->message;
    for (std::size_t cut = 0; cut < bodies[i].size(); ++cut) {
      EXPECT_TRUE(read_text(kEndpoints[i], bodies[i].substr(0, cut)));
    }
    for (int round = 0; round < 3000; ++round) {
      std::string body = bodies[i];
      for (int edit = 0; edit < 3; ++edit)
        body[random() % body.size()] = "{}[]\",:01ex\xff nt"[random() % 16];
      if (const Problem problem = read_text(kEndpoints[i], body)) {
        EXPECT_FALSE(problem->message.empty());
      }
    }
  }
}

// Wrong values inside of what is nested: every leaf of a full body becomes one of each type.
void each_leaf(Json& value, const std::function<void(Json&)>& with) {
  if (value.is_structured()) {
    for (auto& item : value) each_leaf(item, with);
  }
  with(value);
}

TEST(Request, NestedValuesOfAnyTypeEndInAnAnswerOrAnError) {
  const std::pair<std::size_t, const char*> cases[] = {
      {1, R"({"messages":[{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"id":"1",
             "type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"a"}],
             "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{},"strict":true}}],
             "tool_choice":{"type":"function","function":{"name":"f"}},"metadata":{"a":"b"},"documents":[{}],
             "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":true}},
             "stream":true,"stream_options":{"include_usage":true},"logit_bias":{"1":2},"stop":["a"]})"},
      {2, R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},
             {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
             {"type":"function_call_output","call_id":"1","output":"x"}],"reasoning":{"effort":"low"},
             "tools":[{"type":"function","name":"f","parameters":{}}],"tool_choice":{"type":"function","name":"f"},
             "text":{"format":{"type":"json_schema","name":"n","schema":{}},"verbosity":"medium"}})"}};
  for (const auto& [which, text] : cases) {
    const Endpoint& endpoint = kEndpoints[which];
    Json body = Json::parse(text);
    ASSERT_FALSE(read(endpoint, body)) << read(endpoint, body)->message;
    int refused = 0;
    each_leaf(body, [&](Json& leaf) {
      if (&leaf == &body) return;
      const Json kept = leaf;
      for (const auto& [type, value] : kOneOfEachType) {
        leaf = Json::parse(value);
        if (const Problem problem = read(endpoint, body)) {
          EXPECT_EQ(problem->status, 400);
          EXPECT_FALSE(problem->param.empty()) << problem->message;
          ++refused;
        }
      }
      leaf = kept;
    });
    EXPECT_GT(refused, 60);
  }
}

}  // namespace
}  // namespace quire::server::api
