// Every case of golden/tokenizers: ids, both decodings, streams and long texts, exactly as the reference
// library.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/golden_dir.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/sha256_for_tests.h"
#include "tokenizer/tokenizer.h"

namespace quire::tokenizer {
namespace {

using Json = nlohmann::json;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string folder(const std::string& kind) { return testing::golden_dir() + "/tokenizers/" + kind; }

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (testing::golden_dir().empty() || !std::filesystem::exists(folder(GetParam())))
      FAIL() << "no golden data";
    auto made = Tokenizer::from_json(read(folder(GetParam()) + "/tokenizer.json"));
    ASSERT_TRUE(made.ok()) << made.error().message;
    tokenizer_.emplace(std::move(*made));
    cases_ = Json::parse(read(folder(GetParam()) + "/cases.json"));
  }

  // The files with merges as text repeat the texts of their twins, not the streams.
  static bool without_streams() { return std::string_view(GetParam()).ends_with("_string_merges"); }

  std::vector<TokenId> encode(std::string_view text, bool add_special) {
    auto ids = tokenizer_->encode(text, {.add_special = add_special});
    EXPECT_TRUE(ids.ok()) << ids.error().message;
    return ids.ok() ? *ids : std::vector<TokenId>{};
  }

  std::optional<Tokenizer> tokenizer_;
  Json cases_;
};

TEST_P(Golden, TextsBecomeTheStoredIdsAndBack) {
  ASSERT_GT(cases_["cases"].size(), 50u);
  for (const Json& c : cases_["cases"]) {
    if (c.contains("new_unicode")) continue;
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(encode(text, false), ids) << text;
    const auto special = c["ids_special"].get<std::vector<TokenId>>();
    EXPECT_EQ(encode(text, true), special) << text;
    EXPECT_EQ(tokenizer_->decode(ids, false), c["decoded"].get<std::string>()) << text;
    EXPECT_EQ(tokenizer_->decode(special, true), c["decoded_skip"].get<std::string>()) << text;
  }
}

TEST_P(Golden, TextsWithNewCharactersToo) {
  for (const Json& c : cases_["cases"]) {
    if (!c.contains("new_unicode")) continue;
    const auto ids = encode(c["text"].get<std::string>(), false);
    EXPECT_EQ(tokenizer_->decode(ids, false),
              tokenizer_->decode(c["ids"].get<std::vector<TokenId>>(), false));
  }
}

TEST_P(Golden, IdsDecode) {
  ASSERT_FALSE(cases_["decode_only"].empty());
  for (const Json& c : cases_["decode_only"]) {
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_->decode(ids, false), c["decoded"].get<std::string>());
  }
}

TEST_P(Golden, StreamsGiveTheSamePieces) {
  ASSERT_TRUE(without_streams() || !cases_["decode_stream"].empty());
  for (const Json& c : cases_["decode_stream"]) {
    Detokenizer stream(*tokenizer_, false);
    std::string whole;
    for (std::size_t i = 0; i < c["ids"].size(); ++i) {
      const std::string piece = stream.push(c["ids"][i].get<TokenId>());
      EXPECT_EQ(piece, c["chunks"][i].get<std::string>()) << "token " << i << " of " << c["ids"];
      whole += piece;
    }
    whole += stream.flush();
    EXPECT_EQ(whole, tokenizer_->decode(c["ids"].get<std::vector<TokenId>>(), false));
  }
}

TEST_P(Golden, LongTextsBecomeTheStoredIds) {
  ASSERT_TRUE(without_streams() || !cases_["long"].empty());
  for (const Json& c : cases_["long"]) {
    std::string text;
    for (int i = 0; i < c["times"].get<int>(); ++i) text += c["unit"].get<std::string>();
    const auto ids = encode(text, false);
    EXPECT_EQ(ids.size(), c["count"].get<std::size_t>()) << c["unit"];
    std::string joined;
    for (TokenId id : ids) joined.append(joined.empty() ? "" : ",").append(std::to_string(id));
    EXPECT_EQ(testing::sha256(joined), c["sha256"].get<std::string>()) << c["unit"];
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Golden,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "gpt2_string_merges", "llama3",
                                           "llama3_string_merges", "qwen2", "qwen2_string_merges", "o200k",
                                           "smollm", "deepseek", "tekken", "glm4", "command_r", "falcon",
                                           "neox", "qwen3_5", "overlapping_added"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(GoldenRefused, OtherModelsAreRefusedByName) {
  if (testing::golden_dir().empty()) FAIL() << "no golden data";
  const std::pair<const char*, const char*> kinds[] = {{"unigram", "Unigram"},
                                                       {"wordpiece", "WordPiece"},
                                                       {"refuse_wordlevel", "WordLevel"},
                                                       {"llama2_spm", "SentencePiece"},
                                                       {"gemma", "SentencePiece"}};
  for (const auto& [kind, name] : kinds) {
    ASSERT_TRUE(std::filesystem::exists(folder(kind))) << "no golden data of " << kind;
    auto made = Tokenizer::from_json(read(folder(kind) + "/tokenizer.json"));
    ASSERT_FALSE(made.ok()) << kind;
    EXPECT_NE(made.error().message.find(name), std::string::npos) << made.error().message;
    EXPECT_NE(made.error().message.find("supported: BPE with byte level"), std::string::npos)
        << made.error().message;
  }
}

}  // namespace
}  // namespace quire::tokenizer
