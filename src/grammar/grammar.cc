#include "grammar/grammar.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "grammar/schema.h"

namespace xgrammar {
// Of this thread, in steps of a parser; what needs more throws and leaves less than nothing. A unit is what
// steps count that the vocabulary's size has no part in (cmake/patches/xgrammar-work.patch).
void SetWorkLeft(std::int64_t amount, std::int64_t unit);
std::int64_t WorkLeft();
}  // namespace xgrammar

namespace quire::grammar {
namespace {

constexpr std::int32_t kBits = 32;
constexpr int kRecursionMax = 500;  // of xgrammar's own descent, for threads with small stacks
// In steps of the parser, 5 to 40 ns each: of one token with its mask, which all running answers wait for,
// and of a compilation, of which so many are for each entry of the vocabulary, for every character of a
// string with a length costs a pass over it. What people write takes a twentieth of a compilation's at most,
// but for large lengths (docs/FORMATS.md); no such share was measured of a token's.
constexpr std::int64_t kTokenWork = 4'000'000;
constexpr std::int64_t kCompileWork = 50'000'000;
constexpr std::int64_t kCompileWorkPerEntry = 3000;

constexpr std::string_view kTooAmbiguous =
    "it can be read in too many ways at once: give it fewer alternatives that begin alike";
constexpr std::string_view kFailed = "it could not be followed any further";
constexpr std::string_view kDeadEnd = "it allows nothing more here";

class GrammarGuide final : public Guide {
 public:
  GrammarGuide(const xgrammar::CompiledGrammar& compiled, std::span<const std::int32_t> stop_tokens)
      : matcher_(compiled, std::vector<int>(stop_tokens.begin(), stop_tokens.end())),
        vocabulary_(compiled.GetTokenizerInfo().GetVocabSize()),
        words_(static_cast<std::size_t>(xgrammar::GetBitmaskSize(vocabulary_))) {}

  bool mask(std::span<std::uint32_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), 0u);
    if (!broken_ && !fill() && !broken_) return false;
    if (broken_) return true;
    const std::size_t words = std::min(words_.size(), allowed.size());
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < words; ++i) any |= allowed[i] = static_cast<std::uint32_t>(words_[i]);
    if (any == 0 && !ended_) problem_ = kDeadEnd;
    return true;
  }

  void accept(std::int32_t token) override {
    if (broken_ || ended_) return;
    filled_ = false;
    work_left_ = kTokenWork;
    const bool ends = within([&] {
      broken_ = !matcher_.AcceptToken(token);
      return !broken_ && matcher_.IsTerminated();
    });
    ended_ = !broken_ && (ends || (matcher_.IsCompleted() && only_stops()));
  }

  bool ended() const override { return ended_; }
  std::string_view problem() const override { return problem_; }

 private:
  // What `step` says, within what is left of this token's work; false where it fails.
  template <class F>
  bool within(F&& step) {
    xgrammar::SetWorkLeft(work_left_, 1);
    bool result = false;
    try {
      result = step();
    } catch (const std::exception&) {
      broken_ = true;
      problem_ = xgrammar::WorkLeft() < 0 ? kTooAmbiguous : kFailed;
    }
    work_left_ = xgrammar::WorkLeft();
    return result;
  }
  // False when every token may come, or when broken_. Once a token: the words are kept.
  bool fill() {
    if (filled_) return limited_;
    std::int64_t shape = static_cast<std::int64_t>(words_.size());
    DLTensor tensor{words_.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &shape, nullptr, 0};
    limited_ = within([&] { return matcher_.FillNextTokenBitmask(&tensor); });
    // Bits behind the vocabulary are nobody's.
    if (vocabulary_ % kBits != 0)
      words_.back() &= static_cast<std::int32_t>((1u << (vocabulary_ % kBits)) - 1);
    filled_ = true;
    return limited_;
  }
  bool only_stops() {
    if (!fill()) return false;
    const std::vector<int>& stops = matcher_.GetStopTokenIds();
    for (std::int32_t word = 0; word < static_cast<std::int32_t>(words_.size()); ++word) {
      auto others = static_cast<std::uint32_t>(words_[static_cast<std::size_t>(word)]);
      for (const int stop : stops) {
        if (stop >= 0 && stop / kBits == word) others &= ~(1u << (stop % kBits));
      }
      if (others != 0) return false;
    }
    return true;
  }

  xgrammar::GrammarMatcher matcher_;
  std::int32_t vocabulary_;
  std::vector<std::int32_t> words_;
  std::int64_t work_left_ = kTokenWork;  // of the token accepted last, with the mask behind it
  bool filled_ = false;                  // the words are those behind it
  bool limited_ = false;
  bool broken_ = false;  // no token may come: the request fails
  bool ended_ = false;
  std::string_view problem_;
};

class Maker final : public GuideMaker {
 public:
  Maker(xgrammar::CompiledGrammar compiled, std::vector<std::int32_t> stop_tokens)
      : compiled_(std::move(compiled)), stop_tokens_(std::move(stop_tokens)) {}
  std::shared_ptr<Guide> make() const override {
    // check_begin() has made one within the bound of a token, and this does the same.
    xgrammar::SetWorkLeft(std::numeric_limits<std::int64_t>::max(), 1);
    return std::make_shared<GrammarGuide>(compiled_, stop_tokens_);
  }

 private:
  xgrammar::CompiledGrammar compiled_;
  std::vector<std::int32_t> stop_tokens_;
};

// What xgrammar says has its own place in its sources before it: "[12:00:00] /a/b.cc:12: message".
std::string reason(const std::exception& error) {
  std::string text = error.what();
  const std::size_t source = text.find(".cc:");
  const std::size_t colon = source == std::string::npos ? source : text.find(": ", source);
  if (colon != std::string::npos) text = text.substr(colon + 2);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  constexpr std::size_t kMost = 400;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

class XgrammarCompiler final : public Compiler {
 public:
  XgrammarCompiler(const xgrammar::TokenizerInfo& info, std::span<const std::int32_t> stop_tokens)
      : compiler_(info, /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes),
        stop_tokens_(stop_tokens.begin(), stop_tokens.end()),
        work_(kCompileWork + kCompileWorkPerEntry * info.GetVocabSize()) {}

  Result<std::shared_ptr<const GuideMaker>> json_object() override {
    return made("JSON object", "", [this] {
      return compiler_.CompileJSONSchema(R"({"type":"object"})", true, {}, {}, /*strict_mode=*/false,
                                         kWhitespaceMax);
    });
  }
  Result<std::shared_ptr<const GuideMaker>> json_schema(const std::string& schema) override {
    QUIRE_TRY_STATUS(sized("schema", schema));
    QUIRE_TRY_STATUS(check_schema(schema, "the JSON schema: #"));
    return made("schema", schema, [&] {
      return compiler_.CompileJSONSchema(schema, true, {}, {}, /*strict_mode=*/true, kWhitespaceMax);
    });
  }
  Result<std::shared_ptr<const GuideMaker>> ebnf(const std::string& text) override {
    QUIRE_TRY_STATUS(sized("grammar", text));
    return made("grammar", text, [&] { return compiler_.CompileGrammar(text, "root"); });
  }
  Result<std::shared_ptr<const GuideMaker>> structural_tag(const std::string& json) override {
    return made("tool schemas", json, [&] { return compiler_.CompileStructuralTag(json); });
  }

 private:
  // Of white space in a row: without a bound a model that likes it never ends.
  static constexpr int kWhitespaceMax = 8;
  // What the cache's entry of a text takes besides, about.
  static constexpr std::int64_t kEntryBytes = 256;

  static Status sized(const char* what, const std::string& text) {
    if (text.size() <= kGrammarBytesMax) return {};
    return bad_input(fmt::format("the {} has {} bytes: at most {}", what, text.size(), kGrammarBytesMax));
  }

  // Whether an answer can begin, and is found in time.
  Status check_begin(const char* what, const xgrammar::CompiledGrammar& compiled) const {
    xgrammar::SetWorkLeft(kTokenWork, 1);
    GrammarGuide guide(compiled, stop_tokens_);
    const std::int32_t words = xgrammar::GetBitmaskSize(compiled.GetTokenizerInfo().GetVocabSize());
    std::vector<std::uint32_t> allowed(static_cast<std::size_t>(words));
    if (!guide.mask(allowed) || guide.problem().empty()) return {};
    if (guide.problem() != kDeadEnd) return bad_input(fmt::format("the {}: {}", what, guide.problem()));
    // Without stop tokens the empty answer, which some grammars allow, looks the same.
    if (stop_tokens_.empty()) return {};
    return bad_input(
        fmt::format("the {} allows no answer at all: a rule that only leads to itself has no end", what));
  }

  template <class F>
  Result<std::shared_ptr<const GuideMaker>> made(const char* what, const std::string& text, F&& compile) {
    xgrammar::SetWorkLeft(work_, work_ / kCompileWork);
    try {
      const xgrammar::CompiledGrammar compiled = compile();
      count_text(what, text);
      QUIRE_TRY_STATUS(check_begin(what, compiled));
      return std::shared_ptr<const GuideMaker>(std::make_shared<Maker>(compiled, stop_tokens_));
    } catch (const std::exception& error) {
      count_text(what, text);
      return bad_input(fmt::format("the {} cannot be compiled: {}", what, reason(error)));
    }
  }

  // xgrammar's cache keeps the texts too, of refused grammars as well, and counts none of them. Once each: a
  // text that comes again takes no more memory, and must not cost the others what they have compiled.
  void count_text(std::string_view what, const std::string& text) {
    const std::size_t key = std::hash<std::string_view>{}(text) + std::hash<std::string_view>{}(what);
    const std::lock_guard<std::mutex> lock(texts_mutex_);
    if (!texts_.insert(key).second) return;
    text_bytes_ += static_cast<std::int64_t>(text.size()) + kEntryBytes;
    if (text_bytes_ <= kCacheBytes) return;
    text_bytes_ = 0;
    texts_.clear();
    compiler_.ClearCache();
  }

  xgrammar::GrammarCompiler compiler_;
  std::vector<std::int32_t> stop_tokens_;
  std::int64_t work_;  // of a compilation
  std::mutex texts_mutex_;
  std::unordered_set<std::size_t> texts_;  // hashes of those that came since the cache was empty
  std::int64_t text_bytes_ = 0;            // which they take
};

}  // namespace

Result<std::unique_ptr<Compiler>> Compiler::create(const tokenizer::Tokenizer& tokenizer,
                                                   std::span<const std::int32_t> stop_tokens,
                                                   std::span<const std::string_view> markers) {
  const auto size = static_cast<std::int32_t>(tokenizer.vocabulary_size());
  std::vector<std::string> bytes(static_cast<std::size_t>(size));
  for (std::int32_t id = 0; id < size; ++id) {
    const std::string_view text = tokenizer.bytes_of(id);
    const bool marker = std::find(markers.begin(), markers.end(), text) != markers.end();
    // An empty entry never comes but as a stop token.
    if (!tokenizer.is_special(id) || marker) bytes[static_cast<std::size_t>(id)] = text;
  }
  std::vector<std::int32_t> stops;
  for (const std::int32_t stop : stop_tokens) {
    if (stop >= 0 && stop < size) stops.push_back(stop);
  }
  try {
    xgrammar::SetMaxRecursionDepth(kRecursionMax);
    const xgrammar::TokenizerInfo info(bytes, xgrammar::VocabType::RAW, size, stops);
    return std::unique_ptr<Compiler>(std::make_unique<XgrammarCompiler>(info, stops));
  } catch (const std::exception& error) {
    return bad_input(fmt::format("the vocabulary cannot be used for grammars: {}", reason(error)));
  }
}

}  // namespace quire::grammar
