// UTF-8 and the character classes that tokenizers ask for. Text may hold bytes that are not UTF-8: they
// come out one at a time as kBroken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::tokenizer {

inline constexpr std::int32_t kBroken = -1;

struct CodePoint {
  std::int32_t value = kBroken;
  std::size_t bytes = 1;
};

// REQUIRES at < text.size(). Strict: no overlong forms, no surrogates.
CodePoint code_point_at(std::string_view text, std::size_t at);
// The last code point that ends at the end of `text`. REQUIRES text not empty.
CodePoint last_code_point(std::string_view text);
void append_utf8(std::int32_t code_point, std::string& out);

bool is_white_space(std::int32_t code_point);  // White_Space
bool is_word(std::int32_t code_point);         // a letter, mark, digit, connector or joiner
bool is_numeric(std::int32_t code_point);      // Nd, Nl, No
bool is_punctuation(std::int32_t code_point);  // ASCII punctuation or P*

// U+FFFD for each maximal part of a character that is not one (as Rust's from_utf8_lossy).
std::string lossy_utf8(std::string_view bytes);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// Bytes that are not UTF-8 stay as they are.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace quire::tokenizer
