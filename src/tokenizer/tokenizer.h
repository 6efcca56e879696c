// Tokenizer: text to token ids and back. Byte-level BPE, from a Hugging Face tokenizer.json or from the
// vocabulary of a GGUF file; other models (Unigram, WordPiece, SentencePiece-style BPE) are refused by name.
//
// The text walks: added tokens (longest leftmost match) -> normalizer -> pre-tokenizer -> BPE merges ->
// post-processor (BOS and the like). The results are those of the `tokenizers` library, id for id.
//
// Files are untrusted: sizes, depth and ids are bounded, patterns run under match limits, and whatever is
// not right ends in an error, never in a crash or a hang. Immutable once made: encode and decode may be
// called from any number of threads at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::tokenizer {

using TokenId = std::int32_t;

// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// What GGUF metadata says about a vocabulary (tokenizer.ggml.*). Everything is borrowed for the call.
struct GgufVocabulary {
  std::string_view model;                    // "gpt2" is byte-level BPE; others are refused by name
  std::string_view pre;                      // name of the pre-tokenizer: gguf_pre.h lists those known
  std::span<const std::string_view> tokens;  // [vocabulary]
  std::span<const std::int32_t>
      types;  // [vocabulary] 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::span<const std::string_view> merges;  // "a b", best first
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<bool> add_bos;  // absent: what is usual for this pre-tokenizer
  std::optional<bool> add_eos;
};

struct EncodeOptions {
  bool add_special = true;    // the tokenizer's own BOS, EOS and the like around the text
  bool parse_special = true;  // special tokens written in the text become their id, else they are text
  // Special tokens that lie wholly inside one of these ranges (sorted, disjoint) stay text although
  // parse_special is set: the parts of a rendered chat that a user wrote (session/chat_template.h).
  std::span<const ByteRange> plain = {};
};

class Tokenizer {
 public:
  // `text` is the content of tokenizer.json.
  static Result<Tokenizer> from_json(std::string_view text);
  static Result<Tokenizer> from_gguf(const GgufVocabulary& vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are accepted; what is not UTF-8 is encoded as the bytes that it is. A byte that the vocabulary
  // has no token for becomes its unknown token, or is left out where it has none (as the reference does).
  // Fails where a hostile pattern exceeds its limits.
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options) const;

  // Bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary are left out.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // One more than the largest id. Ids in between may be unused.
  std::size_t vocabulary_size() const;
  // The bytes that an id stands for; empty for an id that is not there. May be a part of a character.
  std::string_view bytes_of(TokenId id) const;
  // Special (control) tokens: left out by decode(skip_special).
  bool is_special(TokenId id) const;
  // The id of an added token or vocabulary entry by its content as the file writes it ("<|im_end|>").
  std::optional<TokenId> find(std::string_view content) const;
  // From GGUF only; a tokenizer.json does not name them (tokenizer_config.json and config.json do).
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  // Whether encode(add_special) puts something before or after the text.
  bool adds_special() const;

  struct Impl;

 private:
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace quire::tokenizer
