#include "session/answer.h"

#include <gtest/gtest.h>

namespace quire::session {
namespace {

tokenizer::Tokenizer byte_tokenizer() {
  // Two letters and the two bytes of an e with an acute accent, in GPT-2's byte alphabet.
  static const std::string_view tokens[] = {"a", "b", "Ã", "©"};
  static const std::int32_t types[] = {1, 1, 1, 1};
  tokenizer::GgufVocabulary vocabulary{
      .model = "gpt2", .pre = "gpt-2", .tokens = tokens, .types = types, .merges = {}};
  Result<tokenizer::Tokenizer> made = tokenizer::Tokenizer::from_gguf(vocabulary);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

tokenizer::StopMatcher stops(std::vector<std::string> list) {
  return std::move(tokenizer::StopMatcher::create(std::move(list))).value();
}

TEST(Answer, NeverEmitsHalfACharacter) {
  const tokenizer::Tokenizer tokenizer = byte_tokenizer();
  Answer answer(&tokenizer, stops({}));
  EXPECT_EQ(answer.push(0), "a");
  EXPECT_EQ(answer.push(2), "");
  EXPECT_EQ(answer.push(3), "\xc3\xa9");
  EXPECT_EQ(answer.tokens(), 3);
}

TEST(Answer, StopStringAcrossTokensIsNotShown) {
  const tokenizer::Tokenizer tokenizer = byte_tokenizer();
  Answer answer(&tokenizer, stops({"ab"}));
  EXPECT_EQ(answer.push(1), "b");
  EXPECT_EQ(answer.push(0), "");  // may begin the stop string
  EXPECT_EQ(answer.push(1), "");
  EXPECT_TRUE(answer.stopped());
}

TEST(Answer, HeldTextComesOutAtTheEnd) {
  const tokenizer::Tokenizer tokenizer = byte_tokenizer();
  Answer answer(&tokenizer, stops({"ab"}));
  EXPECT_EQ(answer.push(0), "");
  EXPECT_EQ(answer.flush(), "a");
  EXPECT_FALSE(answer.stopped());
}

TEST(Answer, WithoutATokenizerOnlyCounts) {
  Answer answer(nullptr, stops({}));
  EXPECT_EQ(answer.push(0), "");
  EXPECT_EQ(answer.flush(), "");
  EXPECT_EQ(answer.tokens(), 1);
}

}  // namespace
}  // namespace quire::session
