#include "session/jsonl.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace quire::session {
namespace {

class JsonLines : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int b = 0; b < 128; ++b)
      storage_.emplace_back(b == ' ' ? "\u0120" : std::string(1, static_cast<char>(b)));
    storage_[0] = "<none>";
    storage_.emplace_back("<s>");
    const std::vector<std::string_view> tokens(storage_.begin(), storage_.end());
    std::vector<std::int32_t> types(tokens.size(), 1);
    types.back() = 3;
    tokenizer::GgufVocabulary vocabulary{.model = "gpt2", .pre = "gpt-2", .tokens = tokens, .types = types};
    vocabulary.bos = 128;
    vocabulary.add_bos = true;
    auto made = tokenizer::Tokenizer::from_gguf(vocabulary);
    ASSERT_TRUE(made.ok()) << made.error().message;
    tokenizer_.emplace(std::move(*made));
  }

  std::string tokenized(std::string_view line) { return tokenize_line(*tokenizer_, line); }
  std::string detokenized(std::string_view line) { return detokenize_line(*tokenizer_, line); }
  static std::string rendered(std::string_view source, std::string_view line) {
    auto made = ChatTemplate::parse(source, "template");
    return made ? render_line(*made, {"<s>", "</s>"}, line) : "refused";
  }

  std::vector<std::string> storage_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
};

bool is_error(const std::string& line) { return line.starts_with("{\"error\":\""); }

TEST_F(JsonLines, Tokenize) {
  EXPECT_EQ(tokenized(R"({"text":"a <s>"})"), R"({"ids":[128,97,32,128]})");
  EXPECT_EQ(tokenized(R"( { "add_special_tokens" : false , "text" : "\u0061\"" } )"), R"({"ids":[97,34]})");
  EXPECT_EQ(tokenized(R"({"text":"<s>","add_special_tokens":false,"parse_special":false})"),
            R"({"ids":[60,115,62]})");
  EXPECT_EQ(tokenized(R"({"text":"","add_special_tokens":false})"), R"({"ids":[]})");
  for (const char* bad : {"", "[]", "{", "{}", "null", R"({"text":1})", R"({"text":"a"} x)",
                          R"({"text":"a","add_special_tokens":1})"}) {
    EXPECT_TRUE(is_error(tokenized(bad))) << bad << " gives " << tokenized(bad);
  }
}

TEST_F(JsonLines, Detokenize) {
  EXPECT_EQ(detokenized(R"({"ids":[128,97,32,34]})"), R"({"text":"<s>a \""})");
  EXPECT_EQ(detokenized(R"({"ids":[128,97],"skip_special_tokens":true})"), R"({"text":"a"})");
  EXPECT_EQ(detokenized(R"({"ids":[]})"), R"({"text":""})");
  for (const char* bad : {"{}", R"({"ids":"a"})", R"({"ids":[129]})", R"({"ids":[-1]})", R"({"ids":[1.5]})",
                          R"({"ids":[[1]]})"}) {
    EXPECT_TRUE(is_error(detokenized(bad))) << bad << " gives " << detokenized(bad);
  }
}

TEST_F(JsonLines, Render) {
  const char* source =
      "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{{ eos_token }}{{ "
      "add_generation_prompt }}";
  EXPECT_EQ(rendered(source, R"({"messages":[{"z":"x, ]}","a":"\"\\"}],"tools":null})"),
            R"({"text":"<s>{\"z\": \"x, ]}\", \"a\": \"\\\"\\\\\"}</s>True"})");
  EXPECT_EQ(
      rendered(source, R"({"bos_token":"B","messages":[],"eos_token":"E","add_generation_prompt":false})"),
      R"({"text":"BEFalse"})");
  EXPECT_EQ(rendered("{{ day }}", R"({"messages":[],"kwargs":{"day":3}})"), R"({"text":"3"})");
  EXPECT_EQ(rendered("{{ strftime_now('%Y') }}", R"({"messages":[],"now":"2026-03-05T09:07:00"})"),
            R"({"text":"2026"})");
  EXPECT_EQ(rendered("{{ raise_exception('no') }}", R"({"messages":[]})"), R"({"error":"no"})");
  for (const char* bad : {"{}", "x", R"({"messages":[],"bos_token":1})", R"({"messages":[],"kwargs":[]})"}) {
    EXPECT_TRUE(is_error(rendered(source, bad))) << bad << " gives " << rendered(source, bad);
  }
}

}  // namespace
}  // namespace quire::session
