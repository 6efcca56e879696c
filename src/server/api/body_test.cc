// Bodies that are broken, too deep, too large, cut or mutated, for every endpoint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "server/api/request_case.h"

namespace quire::server::api {
namespace {

using testing::Endpoint;
using testing::facts;
using testing::kEndpoints;
using testing::kOneOfEachType;
using testing::read;
using testing::read_text;

TEST(Body, BrokenBodiesAreRefused) {
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

TEST(Body, DepthAndNumberOfValuesAreBoundedBeforeAnythingIsBuilt) {
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
TEST(Body, MembersOfAnObjectAreBounded) {
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
TEST(Body, ArgumentsOfCallsAreBoundedAsTheBodyIs) {
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
TEST(Body, TheArgumentsOfAllCallsOfABodyAreCountedTogether) {
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
TEST(Body, CutAndMutatedBodiesNeverCrash) {
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

TEST(Body, NestedValuesOfAnyTypeEndInAnAnswerOrAnError) {
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
