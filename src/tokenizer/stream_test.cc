// Detokenizer and StopMatcher: what streams give out must not depend on how the text is cut.
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/byte_level.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/stop.h"
#include "tokenizer/unicode.h"

namespace quire::tokenizer {
namespace {

Tokenizer bytes_only() {
  std::vector<std::string> storage;
  for (int b = 0; b < 256; ++b) storage.emplace_back(byte_to_char(static_cast<std::uint8_t>(b)));
  storage.emplace_back("<end>");
  const std::vector<std::string_view> tokens(storage.begin(), storage.end());
  std::vector<std::int32_t> types(tokens.size(), 1);
  types.back() = 3;
  return std::move(Tokenizer::from_gguf({"gpt2", "gpt-2", tokens, types, {}, {}, {}, {}, {}})).value();
}

TEST(Detokenizer, PiecesAreWholeCharactersAndJoinToDecode) {
  const Tokenizer t = bytes_only();
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids(random() % 60);
    for (TokenId& id : ids)
      id = static_cast<unsigned char>("\xF0\x9F\x98\x80\xE4\xB8\xAD\xC3 x\xFF"[random() % 12]);
    Detokenizer stream(t, false);
    std::string joined;
    for (TokenId id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_EQ(piece, lossy_utf8(piece));
      joined += piece;
    }
    joined += stream.flush();
    EXPECT_EQ(joined, t.decode(ids, false));
  }
}

TEST(Detokenizer, HoldsUntilACharacterIsWhole) {
  const Tokenizer t = bytes_only();
  Detokenizer stream(t, true);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push(0xB8), "");
  EXPECT_EQ(stream.push(0xAD), "\xE4\xB8\xAD");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, EndlessBrokenBytesAreNotHeldForEver) {
  const Tokenizer t = bytes_only();
  Detokenizer stream(t, false);
  std::vector<TokenId> ids(5000, 0xFF);
  std::size_t given = 0;
  for (TokenId id : ids) given += stream.push(id).size();
  EXPECT_GT(given, 3u * 3000);
  EXPECT_EQ(given + stream.flush().size(), 3u * 5000);
}

struct Stopped {
  std::string text;
  int stop = -1;
  std::size_t tokens_before = 0;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};

Stopped run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher = std::move(StopMatcher::create(stops)).value();
  Stopped out;
  for (const std::string& piece : pieces) {
    const StopStep step = matcher.push(piece);
    out.text += step.text;
    if (step.stop < 0) continue;
    out.stop = step.stop;
    out.tokens_before = step.tokens_before;
    EXPECT_EQ(step.bytes_before, out.text.size());
    return out;
  }
  out.text += matcher.flush();
  return out;
}

TEST(StopMatcher, FindsStopsAcrossBorders) {
  EXPECT_EQ(run({"STOP"}, {"a", "bS", "TO", "Pc"}), (Stopped{"ab", 0, 1}));
  EXPECT_EQ(run({"STOP"}, {"a", "STO", "X"}), (Stopped{"aSTOX", -1, 0}));
  EXPECT_EQ(run({"STOP"}, {"STST", "OP"}), (Stopped{"ST", 0, 0}));
  EXPECT_EQ(run({"\n\n", "x"}, {"a\n", "\nx"}), (Stopped{"a", 0, 0}));
  EXPECT_EQ(run({"bc", "abc"}, {"zab", "c"}), (Stopped{"z", 1, 0}));
  EXPECT_EQ(run({}, {"a", "b"}), (Stopped{"ab", -1, 0}));
}

TEST(StopMatcher, GivesOutWhatCannotBeAStop) {
  StopMatcher matcher = std::move(StopMatcher::create({"</s>"})).value();
  EXPECT_EQ(matcher.push("ab<").text, "ab");
  EXPECT_EQ(matcher.push("/x").text, "</x");
  EXPECT_EQ(matcher.push("<").text, "");
  EXPECT_EQ(matcher.flush(), "<");
}

TEST(StopMatcher, CuttingTheTextDoesNotMatter) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) {
      stop.resize(1 + random() % 4);
      for (char& c : stop) c = "ab"[random() % 2];
    }
    std::string text(random() % 20, 'a');
    for (char& c : text) c = "abc"[random() % 3];
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = random() % 4;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    const Stopped whole = run(stops, {text});
    const Stopped cut = run(stops, pieces);
    EXPECT_EQ(whole.text, cut.text) << text;
    EXPECT_EQ(whole.stop, cut.stop) << text;
  }
}

TEST(StopMatcher, BadStopsAreRefused) {
  EXPECT_FALSE(StopMatcher::create({""}).ok());
  EXPECT_FALSE(StopMatcher::create({std::string(kStopBytesMax + 1, 'x')}).ok());
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(kStopStringsMax + 1, "x")).ok());
}

}  // namespace
}  // namespace quire::tokenizer
