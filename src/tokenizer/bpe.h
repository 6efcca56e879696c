// Bpe: the byte-level BPE model, from the bytes of one word to token ids.
//
// Tokens are kept as the bytes that they stand for; a merge is a pair of ids with a rank. Words are merged
// with a heap, so a word of n bytes takes n log n steps.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace quire::tokenizer {

// A hash table from strings, borrowed, to ids. Fixed capacity; the last value of a key wins.
class StringTable {
 public:
  void reserve(std::size_t keys);
  // False if the key was there already (its id is then the new one). REQUIRES fewer keys than reserved.
  bool insert(std::string_view key, TokenId id);
  TokenId find(std::string_view key) const;  // -1: not there
  std::size_t size() const { return keys_; }

 private:
  struct Slot {
    std::string_view key;
    TokenId id = -1;
  };
  std::size_t slot_of(std::string_view key) const;

  std::vector<Slot> slots_;
  std::size_t keys_ = 0;
};

struct BpeOptions {
  TokenId unknown = -1;  // for bytes that have no token; -1: such bytes are left out, as the reference does
  bool fuse_unknown = false;   // one unknown for a run of them
  bool ignore_merges = false;  // a word that is a token is that token
};

class Bpe {
 public:
  struct Merge {
    TokenId left = 0, right = 0, merged = 0;
  };
  // `bytes_of` [ids]: what each id stands for, empty where it is not a token of byte-level words; borrowed.
  // `merges`: best first; a later one of the same pair replaces the earlier.
  Bpe(const std::vector<std::string_view>& bytes_of, const std::vector<Merge>& merges, BpeOptions options);

  // Appends the ids of `word`. Thread-safe.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  struct Rule {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = 0;
    TokenId merged = -1;
  };
  const Rule* rule(TokenId left, TokenId right) const;
  void insert(Merge merge, std::uint32_t rank);

  StringTable words_;  // only with ignore_merges
  TokenId byte_ids_[256];
  std::vector<Rule> rules_;  // open addressing, a power of two
  BpeOptions options_;
};

}  // namespace quire::tokenizer
