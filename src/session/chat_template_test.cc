#include "session/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/golden_dir.h"

namespace quire::session {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string json_or_empty(const Json& c, const char* key) {
  return c.contains(key) && !c[key].is_null() ? c[key].dump() : std::string();
}

Result<RenderedChat> render(const std::string& source, const ChatInputs& inputs) {
  Result<ChatTemplate> made = ChatTemplate::parse(source, "template");
  if (!made) return made.error();
  return made->render(inputs);
}

// The text, or "error: " and the message.
std::string shown(const std::string& source, const ChatInputs& inputs = {.messages = "[]"}) {
  const auto chat = render(source, inputs);
  return chat ? chat->text : "error: " + chat.error().message;
}

std::string repeated(const std::string& unit, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += unit;
  return out;
}

TEST(ChatTemplateGolden, EveryCaseIsExact) {
  const std::filesystem::path root = testing::golden_dir() + "/chat_templates";
  if (!std::filesystem::exists(root)) FAIL() << "no golden data";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    auto made = ChatTemplate::parse(read(entry.path() / "template.jinja"), entry.path().filename().string());
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Json file = Json::parse(read(entry.path() / "cases.json"));
    for (const Json& c : file["cases"]) {
      SCOPED_TRACE(entry.path().filename().string() + " " + c["name"].get<std::string>());
      ChatInputs inputs;
      inputs.messages = c["messages"].dump();
      inputs.tools = json_or_empty(c, "tools");
      inputs.documents = json_or_empty(c, "documents");
      inputs.kwargs = json_or_empty(c, "kwargs");
      inputs.add_generation_prompt = c["add_generation_prompt"].get<bool>();
      inputs.bos_token = file["bos_token"].get<std::string>();
      inputs.eos_token = file["eos_token"].get<std::string>();
      inputs.now = file["now"].get<std::string>();
      const auto chat = made->render(inputs);
      ++cases;
      if (c.contains("error")) {
        ASSERT_FALSE(chat.ok()) << chat->text;
        EXPECT_EQ(chat.error().message, c["error"].get<std::string>());
      } else {
        ASSERT_TRUE(chat.ok()) << chat.error().message;
        EXPECT_EQ(chat->text, c["text"].get<std::string>());
      }
    }
  }
  EXPECT_GT(cases, 0);
}

TEST(ChatTemplate, TextOfUsersIsMarked) {
  const ChatInputs inputs{.messages = R"([{"role":"user","content":"a<|end|>b"}])", .bos_token = "<s>"};
  const auto chat =
      render("{{ bos_token }}<|{{ messages[0].role }}|>{{ messages[0].content | trim }}<|end|>", inputs);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  EXPECT_EQ(chat->text, "<s><|user|>a<|end|>b<|end|>");
  const std::vector<tokenizer::ByteRange> user = {{5, 9}, {11, 20}};
  EXPECT_EQ(chat->user, user);
}

TEST(ChatTemplate, MarksSurviveJsonKeysSplitAndJoin) {
  const ChatInputs inputs{.messages = R"([{"content":"<a>,<b>","<k>":["<v>"]}])"};
  for (const char* source :
       {"{{ messages[0] | tojson }}", "{% for k in messages[0].keys() %}{{ k }}{% endfor %}",
        "{{ messages[0].content.split(',')[0] }}", "{{ messages[0]['<k>'] | join('-') }}",
        "{{ messages[0] | string }}", "{{ messages[0].content.replace(',', ';') }}"}) {
    const auto chat = render(source, inputs);
    ASSERT_TRUE(chat.ok()) << source << chat.error().message;
    ASSERT_EQ(chat->user.size(), 1u) << source << " gives " << chat->text;
    EXPECT_EQ(chat->user[0], (tokenizer::ByteRange{0, chat->text.size()})) << source;
  }
}

TEST(ChatTemplate, JsonIsWrittenAsPythonWritesIt) {
  const ChatInputs inputs{
      .messages =
          R"([{"z":1,"a":[1.0,0.1,1e22,1e-7,-0.0,12345678901234567890,null,true],"é<":"\u0001\"\\/\n"}])"};
  EXPECT_EQ(
      shown("{{ messages[0] | tojson }}", inputs),
      R"({"z": 1, "a": [1.0, 0.1, 1e+22, 1e-07, -0.0, 1.2345678901234567e+19, null, true], "é<": "\u0001\"\\/\n"})");
  EXPECT_EQ(shown("{{ 0.5 }} {{ 3.0 }} {{ 1 / 3 }}"), "0.5 3.0 0.3333333333333333");
}

TEST(ChatTemplate, ContainersArePrintedAsPythonPrintsThem) {
  const ChatInputs inputs{.messages = R"([{"a":["it's",1.5,null,true],"b":"x\n\"y"}])"};
  EXPECT_EQ(shown("{{ messages }}", inputs), R"([{'a': ["it's", 1.5, None, True], 'b': 'x\n"y'}])");
  EXPECT_EQ(shown("{{ none }}|{{ missing }}|{{ (1, 2) }}|{% set a = [] %}{{ a.append(1) or '' }}{{ a }}"),
            "None||(1, 2)|[1]");
}

TEST(ChatTemplate, TimeIsTheOneGiven) {
  EXPECT_EQ(shown("{{ strftime_now('%d %b %Y %A %j') }}", {.messages = "[]", .now = "2026-03-05T09:07:00"}),
            "05 Mar 2026 Thursday 064");
  EXPECT_NE(shown("{{ strftime_now('%Y') }}", {.messages = "[]", .now = "yesterday"}).find("error: now"),
            std::string::npos);
}

TEST(ChatTemplate, ErrorsSayWhere) {
  EXPECT_EQ(shown("{{ raise_exception('no ' ~ 'way') }}"), "error: no way");
  const std::string message = shown("line\n{{ messages.nothing() }}");
  EXPECT_NE(message.find("line 2"), std::string::npos) << message;
  EXPECT_NE(shown("{% if %}").find("error: template"), std::string::npos);
  EXPECT_NE(shown("{{ 1 }}", {.messages = "[{]"}).find("error: messages"), std::string::npos);
  EXPECT_NE(shown("{{ 1 }}", {.messages = "[]", .kwargs = R"({"messages":1})"}).find("cannot replace"),
            std::string::npos);
  EXPECT_NE(shown("{{ 1 }}", {.messages = repeated("[", 100000)}).find("nested deeper"), std::string::npos);
}

// Each of these would crash, hang or take all memory without the limits.
TEST(ChatTemplate, HostileTemplatesAreErrors) {
  const std::string hostile[] = {
      "{{ " + repeated("(", 9000) + "1" + repeated(")", 9000) + " }}",
      repeated("{% if x %}", 4000) + repeated("{% endif %}", 2000),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for i in range(100000000) %}x{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{{ 1" + repeated("+1", 9000) + " }}",
      "{{ 'a'" + repeated("~'a'", 9000) + " }}",
      "{{ " + repeated("not ", 9000) + "1 }}",
      "{{ " + repeated("- ", 9000) + "1 }}",
      "{{ x" + repeated("|string", 9000) + " }}",
      "{{ x" + repeated(".x", 9000) + " }}",
      "{{ x" + repeated("()", 6000) + " }}",
      "{{ x" + repeated("[0]", 6000) + " }}",
      "{% if 0 %}" + repeated("{% elif 0 %}", 4000) + "{% endif %}",
      "{{ " + repeated("1 if 1 else ", 4000) + "1 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ "
      "ns.s }}",
      "{{ 'x' * 1000000000000 }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ "
      "ns.a | tojson }}",
      "{% set ns = namespace(a=(1,2)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ "
      "{ns.a: 1} }}",
      "{% set ns = namespace(a=[]) %}{% for i in range(90000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a "
      "}}",
      "{% set a = [] %}{% set _ = a.append(a) %}{{ a }}",
      "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns | tojson }}",
      "{% set a = [] %}{% set b = [a] %}{% set _ = a.append(b) %}{{ a | tojson }}",
      "{{ 5 is divisibleby(0) }}",
      "{{ [1] | tojson(indent=2000000000) }}",
      "{{ 'a\nb' | indent(2000000000) }}",
      "{% set s = 'ab' * 100000 %}{{ s | replace('', s) }}",
      "{% set s = 'a,' * 100000 %}{% for i in range(1000) %}{% set x = s.split(',') %}{% endfor %}",
      "{{ range(0, 9223372036854775807, 1) }}",
      "{% for 1 in [1] %}{% endfor %}",
      "{{ f(1=2) }}",
      "{{",
      "{%",
      "{#",
      "{{ '",
      "{{ \"\\",
      "{% set %}",
      "{% call x() %}",
      "{% filter %}",
      "{% raw",
      "{{ x[ }}",
      "{{ {1: }}",
  };
  for (const std::string& source : hostile) {
    const std::string text = shown(source);
    EXPECT_TRUE(text.starts_with("error: ")) << source.substr(0, 100) << " gives " << text.substr(0, 100);
  }
}

TEST(ChatTemplate, DeepValuesAreFreedWithoutRecursion) {
  EXPECT_EQ(shown("{% set ns = namespace(a=[]) %}{% for i in range(4000) %}{% set ns.a = [ns.a] %}{% endfor "
                  "%}{% set ns.a = 0 %}ok"),
            "ok");
  EXPECT_EQ(shown("{{ 'abc'[::9223372036854775807] }}"), "a");
}

TEST(ChatTemplate, LimitsCountOneRenderOnly) {
  auto made = ChatTemplate::parse("{{ ('x' * 500000) | length }}", "template");
  ASSERT_TRUE(made.ok());
  for (int i = 0; i < 30; ++i) {
    const auto chat = made->render({.messages = "[]"});
    ASSERT_TRUE(chat.ok()) << chat.error().message;
  }
}

TEST(ChatTemplate, BigTemplatesAreRefused) {
  EXPECT_NE(shown(std::string(kTemplateBytesMax + 1, 'x')).find("over the limit"), std::string::npos);
  EXPECT_NE(shown(repeated("{{1}}", 10000)).find("tokens, over the limit"), std::string::npos);
}

TEST(ChatTemplate, ThreadsShareATemplate) {
  auto made = ChatTemplate::parse("{% for m in messages %}[{{ m.content }}]{% endfor %}", "template");
  ASSERT_TRUE(made.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&made, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string word = std::to_string(t * 1000 + i);
        const auto chat = made->render({.messages = R"([{"content":")" + word + R"("}])"});
        EXPECT_TRUE(chat.ok() && chat->text == "[" + word + "]");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace quire::session
