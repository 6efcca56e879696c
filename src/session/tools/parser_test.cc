// Tool-call parsers: what each format's text becomes, however it is cut; broken calls; the templates'
// formats.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/golden_dir.h"
#include "grammar/grammar.h"
#include "grammar/testing.h"
#include "quire/tools.h"
#include "session/tools/syntax.h"

namespace quire::session {
namespace {

using Events = std::vector<ToolEvent>;

ToolEvent text(const std::string& content) { return {ToolEvent::Kind::content, 0, {}, content}; }
ToolEvent call(std::int32_t index, const std::string& name) {
  return {ToolEvent::Kind::call, index, name, {}};
}
ToolEvent arguments(std::int32_t index, const std::string& json) {
  return {ToolEvent::Kind::arguments, index, {}, json};
}

// Neighbours of one kind and index joined.
Events joined(const Events& events) {
  Events all;
  for (const ToolEvent& event : events) {
    const bool goes_on = !all.empty() && event.kind != ToolEvent::Kind::call &&
                         all.back().kind == event.kind && all.back().index == event.index;
    if (goes_on) {
      all.back().text += event.text;
    } else {
      all.push_back(event);
    }
  }
  return all;
}

Events parse(ToolFormat format, const std::vector<std::string>& pieces,
             const std::vector<std::string>& names) {
  const std::unique_ptr<ToolParser> parser = ToolParser::make(format, names);
  Events events;
  for (const std::string& piece : pieces) parser->push(piece, events);
  parser->finish(events);
  return joined(events);
}

struct Example {
  ToolFormat format;
  std::string answer;
  Events expected;
  std::vector<std::string> names = {"f", "get_weather"};
};

std::vector<Example> examples() {
  using F = ToolFormat;
  return {
      {F::none, " plain <tool_call> text ", {text(" plain <tool_call> text ")}},
      {F::hermes, "", {}},
      {F::hermes, " only text \n", {text(" only text \n")}},
      {F::hermes,
       "a < b, <tool, <tool_calx> and </tool_call>",
       {text("a < b, <tool, <tool_calx> and </tool_call>")}},
      {F::hermes,
       "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>",
       {text("Let me see."), call(0, "f"), arguments(0, R"({"a": [1, "}\""]})")}},
      {F::hermes,
       "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": "
       "\"f\"}</tool_call>\n<tool_call>\n{\"name\":\"get_weather\"}\n"
       "</tool_call>\n",
       {call(0, "f"), arguments(0, R"({"x": 1})"), call(1, "get_weather"), arguments(1, "{}")}},
      {F::hermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call> done",
       {call(0, "f"), arguments(0, R"({"x": 1})"), text(" done")}},
      {F::hermes,
       "x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
       {text("x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>")}},
      {F::hermes,
       "<tool_call> no json <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       {text("<tool_call> no json"), call(0, "f"), arguments(0, "{}")}},
      {F::hermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [}} lost</tool_call>"
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       {call(0, "f"), arguments(0, "{\"a\": ["), call(1, "f"), arguments(1, "{}")}},
      {F::hermes, "<tool_call>{\"name\": \"f\"", {text("<tool_call>{\"name\": \"f\"")}},
      {F::hermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
       {call(0, "f"), arguments(0, "{\"a\"")}},
      {F::hermes, "größer <tool_cäll>", {text("größer <tool_cäll>")}},
      {F::llama, "The answer.", {text("The answer.")}},
      {F::llama,
       "{\"name\": \"f\", \"parameters\": {\"q\": \"ä\"}}",
       {call(0, "f"), arguments(0, R"({"q": "ä"})")}},
      {F::llama,
       "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; "
       "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}",
       {call(0, "f"), arguments(0, "{}"), call(1, "get_weather"), arguments(1, R"({"city": "Rome"})")}},
      {F::llama, "{\"result\": 5}", {text("{\"result\": 5}")}},
      {F::llama, "<|python_tag|>print(1)", {text("<|python_tag|>print(1)")}},
      {F::llama,
       "text {\"name\": \"f\", \"parameters\": {}}",
       {text("text {\"name\": \"f\", \"parameters\": {}}")}},
      {F::mistral, "[TOOL] [TOOL_CALLS", {text("[TOOL] [TOOL_CALLS")}},
      {F::mistral,
       "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": "
       "\"get_weather\", \"arguments\": {}}]",
       {call(0, "f"), arguments(0, R"({"a": 1})"), call(1, "get_weather"), arguments(1, "{}")}},
      {F::mistral,
       "Sure. [TOOL_CALLS] [{\"arguments\": {}, \"name\": \"f\"}]",
       {text("Sure."), call(0, "f"), arguments(0, "{}")}},
      {F::mistral,
       "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[CALL_ID]ab12[ARGS]{}",
       {call(0, "f"), arguments(0, R"({"a": 1})"), call(1, "get_weather"), arguments(1, "{}")}},
      {F::mistral, "[TOOL_CALLS]f{\"a\": {}}", {call(0, "f"), arguments(0, R"({"a": {}})")}},
      {F::mistral, "[TOOL_CALLS] [1, 2]", {text("[TOOL_CALLS] [1, 2]")}},
      {F::mistral, "[TOOL_CALLS]nobody[ARGS]{}", {text("[TOOL_CALLS]nobody[ARGS]{}")}},
      {F::deepseek,
       "Hm.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
       "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {text("Hm."), call(0, "f"), arguments(0, R"({"a": 1})"), call(1, "get_weather"), arguments(1, "{}")}},
      {F::deepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       {call(0, "f"), arguments(0, R"({"a": 1})")}},
      {F::deepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f g",
       {text("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f g")}},
      {F::deepseek, "1 <｜tool｜>", {text("1 <｜tool｜>")}},
  };
}

TEST(ToolParser, ReadsEveryFormat) {
  for (const Example& example : examples())
    EXPECT_EQ(parse(example.format, {example.answer}, example.names), example.expected) << example.answer;
}

TEST(ToolParser, PiecesDoNotMatter) {
  std::mt19937 random(3);
  for (const Example& example : examples()) {
    std::vector<std::string> bytes;
    for (const char c : example.answer) bytes.emplace_back(1, c);
    EXPECT_EQ(parse(example.format, bytes, example.names), example.expected) << "bytes of " << example.answer;
    for (int round = 0; round < 50; ++round) {
      std::vector<std::string> pieces = {""};
      for (const char c : example.answer) {
        if (random() % 5 == 0) pieces.emplace_back();
        pieces.back() += c;
      }
      EXPECT_EQ(parse(example.format, pieces, example.names), example.expected) << example.answer;
    }
  }
}

// Any text at all: cut or whole, the same; nothing of it is lost where no call is.
TEST(ToolParser, RandomTextIsReadTheSameInAnyPieces) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": ",
                                          "\"f\"",
                                          ", \"arguments\": ",
                                          "{\"a\": 1}",
                                          "}",
                                          "\n",
                                          " ",
                                          "[TOOL_CALLS]",
                                          "[",
                                          "]",
                                          ",",
                                          "f",
                                          "[ARGS]",
                                          "[CALL_ID]",
                                          "<|python_tag|>",
                                          "<｜tool▁calls▁begin｜>",
                                          "<｜tool▁call▁begin｜>",
                                          "function",
                                          "<｜tool▁sep｜>",
                                          "```json",
                                          "```",
                                          "<｜tool▁call▁end｜>",
                                          "<｜tool▁calls▁end｜>",
                                          "ä",
                                          "\"",
                                          "\\",
                                          "text",
                                          "<tool",
                                          "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                          "<tool_call>{\"name\": \"f\", ",
                                          "[TOOL_CALLS][{\"name\": \"f\"",
                                          "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
                                          "[TOOL_CALLS]f[ARGS]{"};
  std::mt19937 random(11);
  int calls = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto format = static_cast<ToolFormat>(random() % 5);
    std::string answer;
    std::vector<std::string> pieces;
    for (std::size_t n = random() % 16; n > 0; --n) answer += words[random() % words.size()];
    for (std::size_t at = 0; at < answer.size();) {
      const std::size_t size = 1 + random() % 6;
      pieces.push_back(answer.substr(at, size));
      at += size;
    }
    const Events whole = parse(format, {answer}, {"f"});
    ASSERT_EQ(parse(format, pieces, {"f"}), whole) << to_string(format) << ": " << answer;
    bool none = true;
    for (const ToolEvent& event : whole) none = none && event.kind == ToolEvent::Kind::content;
    calls += none ? 0 : 1;
    if (none && format != ToolFormat::deepseek) {
      ASSERT_EQ(whole, answer.empty() ? Events{} : Events{text(answer)})
          << to_string(format) << ": " << answer;
    }
  }
  EXPECT_GT(calls, 100);
}

std::string template_of(const std::string& name) {
  std::ifstream file(quire::testing::golden_dir() + "/chat_templates/" + name + "/template.jinja");
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

TEST(ToolSyntax, IsReadOffTheChatTemplate) {
  EXPECT_EQ(tool_syntax_of(template_of("hermes")).format, ToolFormat::hermes);
  EXPECT_EQ(tool_syntax_of(template_of("qwen3")).format, ToolFormat::hermes);
  EXPECT_EQ(tool_syntax_of(template_of("chatml_tools")).format, ToolFormat::hermes);
  EXPECT_EQ(tool_syntax_of(template_of("mistral")).format, ToolFormat::mistral);
  EXPECT_EQ(tool_syntax_of(template_of("deepseek")).format, ToolFormat::deepseek);
  for (const char* other : {"gemma", "phi", "chatml", "command_r", "harmony", "glm4"})
    EXPECT_EQ(tool_syntax_of(template_of(other)).format, ToolFormat::none) << other;
  EXPECT_EQ(tool_syntax_of("... <|python_tag|> ...").format, ToolFormat::llama);
  EXPECT_TRUE(tool_syntax_of("[TOOL_CALLS]' + name + '[ARGS]'").named_calls);
}

// Random walks through the grammar of every format: the parser finds the calls and nothing else.
TEST(CallGrammar, WhatItLetsThroughTheParserReads) {
  const nlohmann::json parameters = nlohmann::json::parse(
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99},"s":{"enum":["}]","\"<"]}},
          "required":["n"],"additionalProperties":false})");
  nlohmann::json tools;
  for (const char* name : {"first", "second"})
    tools.push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}});
  const auto tokenizer = tokenizer::Tokenizer::from_json(grammar::testing::byte_tokenizer({"<end>"}));
  ASSERT_TRUE(tokenizer.ok());
  const auto compiler = grammar::Compiler::create(*tokenizer, std::vector<std::int32_t>{256});
  ASSERT_TRUE(compiler.ok());
  std::mt19937 random(8);
  for (const ToolFormat format :
       {ToolFormat::hermes, ToolFormat::llama, ToolFormat::mistral, ToolFormat::deepseek}) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool parallel = variant / 2 == 1;
      const auto rules =
          call_grammar({format, variant % 2 == 1}, {tools.dump(), ToolUse::required, "", parallel});
      ASSERT_TRUE(rules.ok()) << rules.error().message;
      const auto maker = (*compiler)->structural_tag(*rules);
      ASSERT_TRUE(maker.ok()) << maker.error().message;
      for (int walk = 0; walk < 10; ++walk) {
        const std::shared_ptr<Guide> guide = (*maker)->make();
        std::string answer;
        std::vector<std::uint32_t> mask(9);
        while (!guide->ended() && answer.size() < 5000) {
          ASSERT_TRUE(guide->mask(mask));
          std::vector<std::int32_t> may;
          for (std::int32_t id = 0; id <= 256; ++id)
            if (mask[static_cast<std::size_t>(id / 32)] >> id % 32 & 1u) may.push_back(id);
          ASSERT_FALSE(may.empty()) << answer;
          const std::int32_t id = may[random() % may.size()];
          guide->accept(id);
          if (id < 256) answer += static_cast<char>(id);
        }
        if (!guide->ended()) continue;
        const Events events = parse(format, {answer}, {"first", "second"});
        int calls = 0;
        for (const ToolEvent& event : events) {
          EXPECT_NE(event.kind, ToolEvent::Kind::content) << answer;
          calls += event.kind == ToolEvent::Kind::call ? 1 : 0;
          if (event.kind != ToolEvent::Kind::arguments) continue;
          const nlohmann::json json = nlohmann::json::parse(event.text, nullptr, false);
          EXPECT_TRUE(json.is_object() && json.contains("n") && json["n"] >= 0) << event.text;
        }
        EXPECT_GE(calls, 1) << answer;
        EXPECT_TRUE(parallel || calls == 1) << answer;
      }
    }
  }
}

TEST(CallGrammar, RefusesWhatCannotBe) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  EXPECT_FALSE(call_grammar({}, {tools}).ok());
  const ToolSyntax hermes{ToolFormat::hermes, false};
  EXPECT_TRUE(call_grammar(hermes, {tools}).ok());
  EXPECT_NE(call_grammar(hermes, {tools, ToolUse::named, "g"}).error().message.find("no tool named g"),
            std::string::npos);
  EXPECT_FALSE(call_grammar(hermes, {"[]"}).ok());
  EXPECT_FALSE(call_grammar(hermes, {"[{}]"}).ok());
  const std::string not_enforced =
      R"([{"type":"function","function":{"name":"f","parameters":{"not":{"type":"object"}}}}])";
  EXPECT_NE(call_grammar(hermes, {not_enforced}).error().message.find("parameters of tool f: #/not"),
            std::string::npos);
}

}  // namespace
}  // namespace quire::session
