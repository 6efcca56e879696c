// The alphabet of byte-level BPE: every byte is one printable character (space is U+0120 and so on), in
// which vocabulary files write their tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::tokenizer {

// The character of a byte, in UTF-8.
std::string_view byte_to_char(std::uint8_t byte);
std::string bytes_to_chars(std::string_view bytes);
// Nothing if a character of `chars` is not of the alphabet.
std::optional<std::string> chars_to_bytes(std::string_view chars);

}  // namespace quire::tokenizer
