#include "checkpoint/text_settings.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace quire::checkpoint {
namespace {

using testing::TempFolder;

std::unique_ptr<Checkpoint> open(const TempFolder& folder) {
  auto checkpoint = open_checkpoint(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return std::move(*checkpoint);
}

TEST(GenerationDefaults, FileBeatsConfigAndAbsentStaysEmpty) {
  const TempFolder folder;
  folder.write("config.json", R"({"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": null})");
  auto defaults = read_generation_defaults(*open(folder));
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->eos_ids, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(defaults->bos_id, 1);
  EXPECT_FALSE(defaults->pad_id || defaults->temperature || defaults->do_sample || defaults->top_k);
  folder.write(
      "generation_config.json",
      R"({"eos_token_id": [5, 6], "do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1,)"
      R"( "repetition_penalty": 1.1})");
  defaults = read_generation_defaults(*open(folder));
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->eos_ids, (std::vector<std::int64_t>{5, 6}));
  EXPECT_EQ(defaults->do_sample, true);
  EXPECT_EQ(defaults->temperature, 0.6);
  EXPECT_EQ(defaults->top_p, 0.9);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->min_p, 0.1);
  EXPECT_EQ(defaults->repetition_penalty, 1.1);
}

TEST(GenerationDefaults, NonsenseIsNamed) {
  for (const std::string_view bad :
       {R"({"temperature": -1})", R"({"top_p": 2})", R"({"eos_token_id": -1})", R"({"eos_token_id": "x"})",
        R"({"repetition_penalty": 0})", R"({"top_k": 0.5})"}) {
    const TempFolder folder;
    folder.write("config.json", "{}");
    folder.write("generation_config.json", bad);
    const auto defaults = read_generation_defaults(*open(folder));
    ASSERT_FALSE(defaults.ok()) << bad;
    EXPECT_EQ(defaults.error().message.find("generation_config.json: "), 0u) << defaults.error().message;
  }
}

TEST(TextSettings, TemplatesFromBothFiles) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  EXPECT_TRUE(read_text_settings(*open(folder))->templates.empty());
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": "T", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null,)"
      R"( "add_bos_token": true})");
  auto settings = read_text_settings(*open(folder));
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_EQ(settings->find("default")->text, "T");
  EXPECT_EQ(settings->bos_token, "<s>");
  EXPECT_EQ(settings->eos_token, "</s>");
  EXPECT_EQ(settings->unk_token, "");
  EXPECT_EQ(settings->add_bos, true);
  EXPECT_FALSE(settings->add_eos.has_value());
  folder.write("chat_template.jinja", "J");
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]})");
  folder.write("special_tokens_map.json", R"({"bos_token": {"content": "B"}})");
  settings = read_text_settings(*open(folder));
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_EQ(settings->find("default")->text, "J");
  EXPECT_EQ(settings->find("tool_use")->text, "U");
  EXPECT_EQ(settings->bos_token, "B");
  EXPECT_EQ(settings->find("rag"), nullptr);
}

TEST(TextSettings, AFileThatIsBrokenOffIsNotOneWithAnOddValue) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    for (const char* broken : {"", "{", "[]", R"({"bos_token": "<s)"}) {
      folder.write(name, broken);
      const auto settings = read_text_settings(*open(folder));
      ASSERT_FALSE(settings.ok()) << name << broken;
      EXPECT_NE(settings.error().message.find(name), std::string::npos) << settings.error().message;
    }
    folder.write(name, R"({"bos_token": 5})");
    const auto settings = read_text_settings(*open(folder));
    ASSERT_TRUE(settings.ok()) << settings.error().message;
    ASSERT_FALSE(settings->refused.ok());
    EXPECT_NE(settings->refused.error().message.find("bos_token"), std::string::npos);
    folder.write(name, "{}");
    EXPECT_TRUE(read_text_settings(*open(folder))->refused.ok());
  }
}

}  // namespace
}  // namespace quire::checkpoint
