// Answers that are held to a format, through a whole session: a tiny model of random weights at temperature
// 1, which without the format writes noise.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "grammar/testing.h"
#include "quire/session.h"

namespace quire::session {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int32_t kEnd = 256;

// ---- random schemas, and what they accept ----------------------------------------------------------------

Json random_schema(std::mt19937& random, int depth) {
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  switch (depth > 0 ? below(9) : below(6)) {
    case 0:
      return {{"type", "integer"}, {"minimum", below(5)}, {"maximum", 5 + below(500)}};
    case 1:
      return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 3 + below(9)}};
    case 2:
      return {{"enum", {"red", below(9), nullptr, true}}};
    case 3:
      return {{"type", "boolean"}};
    case 4:
      return {{"const", "fixed \"text\""}};
    case 5:
      return {{"type", "string"}, {"pattern", "^[A-C]{2,4}-[0-9]{3}$"}};
    case 6: {
      Json list = {{"type", "array"}, {"maxItems", 1 + below(4)}};
      list["items"] = random_schema(random, depth - 1);
      return list;
    }
    case 7: {
      Json any = {{"anyOf", Json::array()}};
      for (int i = 1 + below(3); i > 0; --i) any["anyOf"].push_back(random_schema(random, depth - 1));
      return any;
    }
    default: {
      Json object = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
      for (int i = below(4); i >= 0; --i) {
        const std::string name = "key " + std::to_string(i);
        object["properties"][name] = random_schema(random, depth - 1);
        if (below(2) == 0) object["required"].push_back(name);
      }
      object["additionalProperties"] = false;
      return object;
    }
  }
}

// Code points: lengths of a schema count these.
std::size_t length_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool matches_code(const std::string& text) {  // ^[A-C]{2,4}-[0-9]{3}$
  const std::size_t dash = text.find('-');
  if (dash < 2 || dash > 4 || text.size() != dash + 4) return false;
  return text.find_first_not_of("ABC") == dash &&
         text.find_first_not_of("0123456789", dash + 1) == std::string::npos;
}

bool accepts(const Json& schema, const Json& value) {
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  if (schema.contains("anyOf"))
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const Json& one) { return accepts(one, value); });
  const std::string type = schema["type"];
  if (type == "boolean") return value.is_boolean();
  if (type == "integer")
    return value.is_number_integer() && value >= schema["minimum"] && value <= schema["maximum"];
  if (type == "string") {
    if (!value.is_string()) return false;
    if (schema.contains("pattern")) return matches_code(value);
    const std::size_t length = length_of(value);
    return length >= schema["minLength"] && length <= schema["maxLength"];
  }
  if (type == "array") {
    return value.is_array() && value.size() <= schema["maxItems"] &&
           std::all_of(value.begin(), value.end(),
                       [&](const Json& one) { return accepts(schema["items"], one); });
  }
  if (!value.is_object()) return false;
  for (const Json& name : schema["required"])
    if (!value.contains(name.get<std::string>())) return false;
  for (const auto& [name, inner] : value.items())
    if (!schema["properties"].contains(name) || !accepts(schema["properties"][name], inner)) return false;
  return true;
}

// ---- a session -------------------------------------------------------------------------------------------

class FormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("quire_format_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32",
      "tie_word_embeddings": true, "eos_token_id": 256})";
    std::ofstream(folder_ / "tokenizer.json")
        << grammar::testing::byte_tokenizer({"<end>", "[TOOL_CALLS]", "<other>"});
    const std::string chat_template =
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
        "{# calls: [TOOL_CALLS] #}";
    std::ofstream(folder_ / "tokenizer_config.json") << Json{{"chat_template", chat_template}}.dump();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Session> open(void (*change)(Options&) = [](Options&) {}) const {
    Options options;
    options.load_format = "dummy";
    options.max_running = 8;
    options.page_size = 16;
    options.kv_memory_bytes = 16 << 20;
    options.threads = 2;
    change(options);
    auto session = Session::open(folder_.string(), options);
    EXPECT_TRUE(session.ok()) << session.error().message;
    return session.ok() ? std::move(session).value() : nullptr;
  }
  struct Answer {
    std::string text;
    std::vector<std::int32_t> tokens;
    Finish finish = Finish::none;
    std::string error;
  };
  static std::vector<Answer> run(Session& session, const std::vector<TextRequest>& requests) {
    std::map<RequestId, Answer> answers;
    std::vector<RequestId> ids;
    for (const TextRequest& request : requests) {
      const auto id = session.submit(request);
      EXPECT_TRUE(id.ok()) << id.error().message;
      ids.push_back(id.ok() ? *id : 0);
    }
    std::vector<TextOutput> outputs;
    while (session.step(outputs)) {
      for (const TextOutput& output : outputs) {
        Answer& answer = answers[output.id];
        answer.text += output.text;
        answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
        if (output.finish != Finish::none) answer.finish = output.finish, answer.error = output.error;
      }
      outputs.clear();
    }
    EXPECT_EQ(session.engine().audit(), std::vector<std::string>());
    std::vector<Answer> ordered;
    for (const RequestId id : ids) ordered.push_back(answers[id]);
    return ordered;
  }
  static TextRequest request(const std::string& text, std::uint64_t seed) {
    TextRequest made;
    made.text = text;
    made.max_tokens = 1500;
    made.sampling.temperature = 1.0f;
    made.sampling.seed = seed;
    return made;
  }
  std::filesystem::path folder_;
};

TEST_F(FormatTest, EveryAnswerIsWhatItsRandomSchemaAccepts) {
  std::mt19937 random(17);
  std::vector<TextRequest> requests;
  std::vector<Json> schemas;
  for (std::uint64_t i = 0; i < 120; ++i) {
    schemas.push_back(random_schema(random, 3));
    requests.push_back(request("schema " + std::to_string(i % 7), i));
    if (i % 10 == 9) continue;  // some are not held to anything
    requests.back().format = AnswerFormat::json_schema;
    requests.back().schema = schemas.back().dump();
  }
  const std::unique_ptr<Session> session = open();
  ASSERT_NE(session, nullptr);
  const std::vector<Answer> answers = run(*session, requests);
  int ended = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i % 10 == 9) continue;
    ASSERT_NE(answers[i].finish, Finish::failed) << answers[i].error << " " << schemas[i].dump();
    if (answers[i].finish != Finish::stop) continue;
    ++ended;
    const Json value = Json::parse(answers[i].text, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(value.is_discarded()) << answers[i].text;
    EXPECT_TRUE(accepts(schemas[i], value)) << schemas[i].dump() << "\n" << answers[i].text;
  }
  EXPECT_GE(ended, 100);
  // The same alone, without overlap, and with little memory: what the others do does not matter.
  for (auto change : {+[](Options& o) { o.max_running = 1, o.overlap = false; },
                      +[](Options& o) { o.kv_memory_bytes = 1 << 20, o.prefix_cache = "off"; }}) {
    const std::unique_ptr<Session> other = open(change);
    ASSERT_NE(other, nullptr);
    const std::vector<Answer> again = run(*other, requests);
    for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(again[i].tokens, answers[i].tokens) << i;
  }
}

TEST_F(FormatTest, ObjectsAndGrammars) {
  const std::unique_ptr<Session> session = open();
  ASSERT_NE(session, nullptr);
  std::vector<TextRequest> requests(8, request("x", 0));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.seed = i;
    requests[i].format = i % 2 == 0 ? AnswerFormat::json_object : AnswerFormat::grammar;
    requests[i].schema = "root ::= (\"yes\" | \"no\") \".\"";
  }
  // prepare() on the side gives the same, and its copies guides of their own.
  const auto prepared = session->prepare(requests[1]);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  ASSERT_NE(prepared->guides, nullptr);
  requests[1] = requests[3] = *prepared;
  int objects = 0;
  const std::vector<Answer> answers = run(*session, requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i % 2 == 1) {
      EXPECT_TRUE(answers[i].text == "yes." || answers[i].text == "no.") << answers[i].text;
      EXPECT_EQ(answers[i].finish, Finish::stop);
    } else if (answers[i].finish == Finish::stop) {
      // A number beyond a double is JSON, but none for this parser.
      const std::string text = std::regex_replace(answers[i].text, std::regex("[0-9]{3,}"), "9");
      EXPECT_TRUE(Json::parse(text, nullptr, false).is_object()) << answers[i].text;
      ++objects;
    }
  }
  EXPECT_GT(objects, 0);
}

TEST_F(FormatTest, ADeadEndIsTheGrammarsProblem) {
  const std::unique_ptr<Session> session = open();
  ASSERT_NE(session, nullptr);
  TextRequest dead = request("x", 1);
  dead.format = AnswerFormat::grammar;
  dead.schema = "root ::= \"a\" x\nx ::= x";
  ASSERT_TRUE(session->submit(dead).ok());
  std::vector<TextOutput> outputs;
  TextOutput last;
  while (session->step(outputs)) {
    for (TextOutput& output : outputs) last = std::move(output);
  }
  EXPECT_EQ(last.finish, Finish::failed);
  EXPECT_EQ(last.completion_tokens, 1);
  EXPECT_EQ(last.guide_problem, "it allows nothing more here");
}

TEST_F(FormatTest, RequiredToolsAreCalled) {
  const std::unique_ptr<Session> session = open();
  ASSERT_NE(session, nullptr);
  ASSERT_EQ(session->tool_format(), ToolFormat::mistral);
  const Json parameters = {{"type", "object"},
                           {"properties", {{"n", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
                           {"required", {"n"}},
                           {"additionalProperties", false}};
  Json tools = Json::array();
  for (const char* name : {"first", "second"})
    tools.push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}});
  std::vector<TextRequest> requests;
  for (std::uint64_t i = 0; i < 24; ++i) {
    requests.push_back(request("", i));
    TextRequest& made = requests.back();
    made.conversation = Json{{"messages", {{{"role", "user"}, {"content", "go"}}}}, {"tools", tools}}.dump();
    made.keep_tool_markers = true;
    made.tool_use = i % 2 == 0 ? ToolUse::required : ToolUse::named;
    made.tool_name = "second";
    made.parallel_tool_calls = i % 4 == 0;
    made.max_tokens = 300;
  }
  int several = 0;
  const std::vector<Answer> answers = run(*session, requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::unique_ptr<ToolParser> parser = ToolParser::make(session->tool_format(), {"first", "second"});
    std::vector<ToolEvent> events;
    parser->push(answers[i].text, events);
    parser->finish(events);
    EXPECT_GE(parser->calls(), 1) << answers[i].text;
    several += parser->calls() > 1 ? 1 : 0;
    if (i % 4 != 0) {
      EXPECT_EQ(parser->calls(), 1) << answers[i].text;
    }
    if (answers[i].finish != Finish::stop) continue;
    for (const ToolEvent& event : events) {
      EXPECT_NE(event.kind, ToolEvent::Kind::content) << event.text << " of " << answers[i].text;
      if (event.kind == ToolEvent::Kind::call && i % 2 == 1) {
        EXPECT_EQ(event.name, "second");
      }
      if (event.kind == ToolEvent::Kind::arguments) {
        EXPECT_TRUE(accepts(parameters, Json::parse(event.text, nullptr, false))) << event.text;
      }
    }
  }
  EXPECT_GT(several, 0);
}

TEST_F(FormatTest, WhatCannotBeIsSaid) {
  const std::unique_ptr<Session> session = open();
  ASSERT_NE(session, nullptr);
  TextRequest bad = request("x", 1);
  bad.format = AnswerFormat::json_schema;
  bad.schema = R"({"not": {}})";
  EXPECT_NE(session->submit(bad).error().message.find("the JSON schema: #/not"), std::string::npos);
  EXPECT_FALSE(session->prepare(bad).ok());
  EXPECT_FALSE(session->check(bad).ok());
  bad.format = AnswerFormat::text;
  bad.tool_use = ToolUse::required;
  EXPECT_NE(session->submit(bad).error().message.find("no tool"), std::string::npos);
}

}  // namespace
}  // namespace quire::session
