// AddedTokens: finds the tokens that are looked for in the text itself, before it is cut into words.
//
// At every place the longest one wins, places go from left to right. Those marked `normalized` are looked for
// in the normalized text, the others before normalization (two tables).
#pragma once

#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/spec.h"

namespace quire::tokenizer {

// A piece of a text: an added token, or text in between (id -1).
struct Piece {
  ByteRange range;
  TokenId id = -1;
};

// Which special tokens may be found.
struct SpecialFilter {
  bool parse = true;
  std::span<const ByteRange> plain;  // not wholly inside one of these
  std::size_t offset = 0;            // of the text within what `plain` counts in
  bool exact = true;  // false: offsets are lost; special tokens are not found if `plain` touches the text
};

class AddedTokens {
 public:
  // `normalized_content[i]`: what tokens[i] is looked for as. Tokens of empty content are never found.
  AddedTokens(const std::vector<AddedToken>& tokens, const std::vector<std::string>& normalized_content);

  // Appends the pieces of `text`; no piece is empty.
  void find(std::string_view text, bool in_normalized, const SpecialFilter& filter,
            std::vector<Piece>& out) const;

 private:
  // A trie; children of all nodes in one table.
  struct Trie {
    std::vector<int> token{-1};                              // by node: index of the token that ends here
    std::unordered_map<std::uint64_t, std::uint32_t> child;  // node * 256 + byte
    bool first[256] = {};
    void insert(std::string_view content, int index);
    // Index of the longest token at `at`, or -1.
    int longest(std::string_view text, std::size_t at, std::size_t& end) const;
  };

  std::vector<AddedToken> tokens_;
  Trie raw_, normalized_;
};

}  // namespace quire::tokenizer
