// TokenizerSpec: what a tokenizer file says, checked, before anything is built from it. tokenizer.json
// (json_spec.cc) and GGUF vocabularies (gguf_spec.cc) both become one.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire::tokenizer {

// Bounds on untrusted files; the largest vocabularies of today have 262 thousand tokens.
inline constexpr std::size_t kFileBytesMax = 256 << 20;
inline constexpr std::size_t kIdsMax = 4 << 20;
inline constexpr std::size_t kMergesMax = 8 << 20;
inline constexpr std::size_t kAddedMax = 1 << 16;
inline constexpr std::size_t kAddedBytesMax = 4096;
inline constexpr std::size_t kStepsMax = 64;

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;   // looked for in the normalized text
  bool single_word = false;  // only between characters that are not of words
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

struct NormalizerStep {
  enum class Kind { form, prepend, replace_text, replace_regex, lowercase } kind = Kind::form;
  NormalForm form = NormalForm::nfc;
  std::string pattern;
  std::string content;
};

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct PreStep {
  enum class Kind { regex, text, digits, punctuation, byte_level } kind = Kind::regex;
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  bool add_prefix_space = false;  // byte_level
  bool use_regex = false;         // byte_level: GPT-2's pattern
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, TokenId>> vocabulary;  // as written: in the alphabet of byte_level.h
  std::vector<std::pair<std::string, std::string>> merges;
  TokenId unknown = -1;
  bool fuse_unknown = false;
  bool ignore_merges = false;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreStep> pre_tokenizer;
  std::vector<TokenId> prefix;  // before and after the text, with add_special
  std::vector<TokenId> suffix;
  std::optional<TokenId> bos, eos;
};

// GPT-2's pattern, which ByteLevel(use_regex) means.
inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<TokenizerSpec> spec_from_json(std::string_view text);
Result<TokenizerSpec> spec_from_gguf(const GgufVocabulary& vocabulary);

}  // namespace quire::tokenizer
