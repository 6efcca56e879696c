// The vocabulary of the real model's GGUF file gives the ids of golden/smollm2.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/golden_dir.h"
#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer.h"

namespace quire::tokenizer {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(SmolLm2, TextsBecomeTheStoredIds) {
  const std::filesystem::path model =
      std::string(QUIRE_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const std::filesystem::path folder = testing::golden_dir() + "/smollm2";
  if (!std::filesystem::exists(model)) FAIL() << "the model is not in .deps/models";
  if (testing::golden_dir().empty() || !std::filesystem::exists(folder)) FAIL() << "no golden data";
  const std::string bytes = read(model);
  const auto file = checkpoint::GgufFile::parse(std::as_bytes(std::span(bytes)), "model");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto tokens = file->strings("tokenizer.ggml.tokens");
  const auto merges = file->strings("tokenizer.ggml.merges");
  const auto types = file->integers("tokenizer.ggml.token_type");
  const auto pre = file->string("tokenizer.ggml.pre");
  ASSERT_TRUE(tokens.ok() && merges.ok() && types.ok() && pre.ok());
  const std::vector<std::int32_t> types32(types->begin(), types->end());
  const auto tokenizer = Tokenizer::from_gguf(
      {.model = "gpt2", .pre = *pre, .tokens = *tokens, .types = types32, .merges = *merges});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const auto stored = nlohmann::json::parse(read(entry.path()));
    const auto text = stored["text"].get<std::string>();
    const auto ids = tokenizer->encode(text, {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, stored["ids"].get<std::vector<TokenId>>()) << entry.path();
    EXPECT_EQ(tokenizer->decode(*ids, false), text);
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace quire::tokenizer
