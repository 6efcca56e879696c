#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tokenizer/byte_level.h"
#include "tokenizer/gguf_pre.h"
#include "tokenizer/unicode.h"

namespace quire::tokenizer {
namespace {

using Json = nlohmann::json;

// All bytes, "ab", "abc", " a"; two added tokens.
Json small_file() {
  Json vocab;
  for (int b = 0; b < 256; ++b) vocab[std::string(byte_to_char(static_cast<std::uint8_t>(b)))] = b;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["\u0120a"] = 258;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c", "\u0120 a"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens",
           {{{"id", 259}, {"content", "<|end|>"}, {"special", true}},
            {{"id", 260}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}}}};
}

Tokenizer made(const Json& file) {
  auto result = Tokenizer::from_json(file.dump());
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(result).value();
}

std::string refusal(const Json& file) {
  auto result = Tokenizer::from_json(file.dump());
  return result ? "accepted" : result.error().message;
}

std::vector<TokenId> ids(const Tokenizer& t, std::string_view text, const EncodeOptions& options = {}) {
  auto result = t.encode(text, options);
  EXPECT_TRUE(result.ok());
  return result ? *result : std::vector<TokenId>{};
}

TEST(Tokenizer, MergesBestFirst) {
  const Tokenizer t = made(small_file());
  EXPECT_EQ(ids(t, "abc ab"), (std::vector<TokenId>{257, ' ', 256}));
  EXPECT_EQ(ids(t, " ac"), (std::vector<TokenId>{258, 'c'}));
  EXPECT_EQ(t.vocabulary_size(), 261u);
  EXPECT_EQ(t.find("<|end|>"), 259);
  EXPECT_EQ(t.find("abc"), 257);
  EXPECT_EQ(t.find("nothing"), std::nullopt);
  EXPECT_FALSE(t.adds_special());
}

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer t = made(small_file());
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text) c = "ab c\xC3\xA9\xE4\xFF\n0"[random() % 11];
    std::string bytes;
    for (TokenId id : ids(t, text)) bytes += t.bytes_of(id);
    EXPECT_EQ(bytes, text);
    EXPECT_EQ(t.decode(ids(t, text), false), lossy_utf8(text));
  }
}

TEST(Tokenizer, SpecialTokensOfUsersStayText) {
  const Tokenizer t = made(small_file());
  const std::string text = "a<|end|>b<|end|>";
  EXPECT_EQ(ids(t, text), (std::vector<TokenId>{'a', 259, 'b', 259}));
  const std::vector<ByteRange> plain = {{0, 9}};
  const auto mixed = ids(t, text, {.plain = plain});
  EXPECT_EQ(std::count(mixed.begin(), mixed.end(), 259), 1);
  EXPECT_EQ(mixed.back(), 259);
  EXPECT_EQ(t.decode(mixed, false), text);
  // A token of which only a part is the user's is the template's own: "<|" + role + "|>".
  const std::vector<ByteRange> inside = {{3, 6}};
  EXPECT_EQ(ids(t, text, {.plain = inside}), ids(t, text));
  const auto none = ids(t, text, {.parse_special = false});
  EXPECT_EQ(std::count(none.begin(), none.end(), 259), 0);
  EXPECT_EQ(ids(t, "<tool>", {.parse_special = false}), std::vector<TokenId>{260});
  EXPECT_EQ(t.decode(std::vector<TokenId>{'a', 259, 260, 100000, -5}, true), "a<tool>");
}

TEST(Tokenizer, PlainRangesHoldUnderANormalizer) {
  Json file = small_file();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"][0]["normalized"] = true;
  const Tokenizer t = made(file);
  const std::string text = "e\u0301<|end|>";
  EXPECT_EQ(ids(t, text).back(), 259);
  const std::vector<ByteRange> plain = {{0, text.size()}};
  EXPECT_EQ(std::string(t.bytes_of(ids(t, text, {.plain = plain}).back())), ">");
}

TEST(Tokenizer, BadFilesAreRefused) {
  Json file = small_file();
  EXPECT_EQ(refusal(file), "accepted");
  const auto with = [&](auto change) {
    Json copy = small_file();
    change(copy);
    return refusal(copy);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["type"] = "Unigram"; }),
                  "tokenizer model Unigram is not supported; supported: BPE with byte level"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["merges"].push_back("a zz"); }),
                  "\"zz\", which is not in the vocabulary"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["merges"].push_back("b c"); }), "\"bc\""));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["merges"].push_back("abc"); }), "not two tokens"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["merges"].push_back({"a", "b", "c"}); }), "more than two"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["merges"] = 5; }), "no list of merges"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"].erase("merges"); }), "no list of merges"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["vocab"]["x!"] = 3; }), "token id 3 is there twice"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["vocab"]["x!"] = 4000000000u; }), "outside"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["vocab"]["x!"] = -1; }), "outside"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["vocab"]["x!"] = "y"; }), "not two tokens") ||
              has(with([](Json& f) { f["model"]["vocab"]["x!"] = "y"; }), "not a number"));
  EXPECT_TRUE(has(with([](Json& f) { f["added_tokens"][0]["id"] = 1 << 30; }), "id of an added token"));
  EXPECT_TRUE(has(with([](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }), "there twice"));
  EXPECT_TRUE(has(with([](Json& f) {
                    f["pre_tokenizer"] = {{"type", "Metaspace"}};
                  }),
                  "pre-tokenizer Metaspace"));
  EXPECT_TRUE(has(with([](Json& f) { f["pre_tokenizer"] = nullptr; }), "SentencePiece"));
  EXPECT_TRUE(has(with([](Json& f) {
                    f["normalizer"] = {{"type", "Precompiled"}};
                  }),
                  "normalizer Precompiled"));
  EXPECT_TRUE(has(with([](Json& f) { f["decoder"] = {{"type", "Metaspace"}}; }), "decoder Metaspace"));
  EXPECT_TRUE(has(with([](Json& f) { f["model"]["dropout"] = 0.1; }), "dropout"));
  EXPECT_TRUE(has(Tokenizer::from_json("[1,2").error().message, "not JSON"));
  EXPECT_TRUE(has(Tokenizer::from_json(std::string(100000, '[')).error().message, "nested deeper"));
  EXPECT_TRUE(has(Tokenizer::from_json("{\"model\":1,\"model\":2}").error().message, "there twice"));
}

Json split_file(const std::string& pattern) {
  Json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return file;
}

TEST(Tokenizer, BadPatternsAreRefused) {
  for (const char* pattern : {"(", "[a[b]]", "[a&&b]", "\\p{Nonsense}", "(?<=a+)b", "\\C"}) {
    EXPECT_NE(refusal(split_file(pattern)).find("not supported"), std::string::npos) << pattern;
  }
  EXPECT_NE(refusal(split_file(std::string(20000, 'a'))).find("over the limit"), std::string::npos);
}

TEST(Tokenizer, CatastrophicPatternsEndInAnError) {
  const Tokenizer t = made(split_file("(a|a)*(a|aa)*(aa|a)*$x"));
  const auto result = t.encode(std::string(5000, 'a') + "xy", {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("takes too long"), std::string::npos) << result.error().message;
}

TEST(Tokenizer, MongolianVowelSeparatorIsNoSpace) {
  // PCRE2's own \s has it.
  const Tokenizer t = made(split_file("\\s+|[^\\s]+"));
  EXPECT_EQ(ids(t, "ab\u180Ec").size(), 5u);
}

struct Vocabulary {
  std::vector<std::string> storage;
  std::vector<std::string_view> tokens;
  std::vector<std::int32_t> types;
  std::vector<std::string_view> merges = {"a b", "ab c"};
  Vocabulary() {
    for (int b = 0; b < 256; ++b) storage.emplace_back(byte_to_char(static_cast<std::uint8_t>(b)));
    for (const char* t : {"ab", "abc", "<s>", "</s>", "<think>"}) storage.emplace_back(t);
    tokens.assign(storage.begin(), storage.end());
    types.assign(tokens.size(), 1);
    types[258] = types[259] = 3;
    types[260] = 4;
  }
  GgufVocabulary gguf(std::string_view pre) const {
    return {"gpt2", pre, tokens, types, merges, 258, 259, {}, {}};
  }
};

TEST(TokenizerGguf, VocabularyWorks) {
  const Vocabulary v;
  GgufVocabulary file = v.gguf("gpt-2");
  auto plain = Tokenizer::from_gguf(file);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(ids(*plain, "abc</s><think>"), (std::vector<TokenId>{257, 259, 260}));
  EXPECT_TRUE(plain->is_special(259));
  EXPECT_FALSE(plain->is_special(260));
  EXPECT_EQ(plain->bos(), 258);
  file.add_bos = true;
  file.add_eos = true;
  auto both = Tokenizer::from_gguf(file);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(ids(*both, "abc"), (std::vector<TokenId>{258, 257, 259}));
}

TEST(TokenizerGguf, EveryNamedPreTokenizerWorks) {
  const Vocabulary v;
  for (const GgufPre& row : gguf_pre_table()) {
    auto t = Tokenizer::from_gguf(v.gguf(row.name));
    ASSERT_TRUE(t.ok()) << row.name << t.error().message;
    const std::string text = "abc's 1234 x\u00e9 \u4e2d!!\n\n  y";
    const auto found = ids(*t, text);
    EXPECT_EQ(found.front() == 258, row.add_bos) << row.name;
    EXPECT_EQ(t->decode(found, true), text) << row.name;
  }
}

TEST(TokenizerGguf, OthersAreRefusedByName) {
  const Vocabulary v;
  GgufVocabulary file = v.gguf("nonsense");
  EXPECT_NE(Tokenizer::from_gguf(file).error().message.find("\"nonsense\""), std::string::npos);
  EXPECT_NE(Tokenizer::from_gguf(file).error().message.find("llama-bpe"), std::string::npos);
  file.pre = "gpt-2";
  file.model = "llama";
  EXPECT_NE(Tokenizer::from_gguf(file).error().message.find("\"llama\""), std::string::npos);
  file.model = "gpt2";
  file.bos = 5000;
  EXPECT_FALSE(Tokenizer::from_gguf(file).ok());
  file.bos = 1;
  file.types = file.types.subspan(1);
  EXPECT_FALSE(Tokenizer::from_gguf(file).ok());
}

}  // namespace
}  // namespace quire::tokenizer
