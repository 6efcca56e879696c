#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/unicode.h"

namespace quire::tokenizer {
namespace {

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<std::int16_t, 512> bytes;  // by code point; -1: not of the alphabet

  Alphabet() {
    bytes.fill(-1);
    std::int32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const std::int32_t point = printable ? b : next++;
      append_utf8(point, chars[static_cast<std::size_t>(b)]);
      bytes[static_cast<std::size_t>(point)] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_to_char(std::uint8_t byte) { return alphabet().chars[byte]; }

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char c : bytes) out += byte_to_char(static_cast<std::uint8_t>(c));
  return out;
}

std::optional<std::string> chars_to_bytes(std::string_view chars) {
  const Alphabet& a = alphabet();
  std::string out;
  out.reserve(chars.size());
  for (std::size_t at = 0; at < chars.size();) {
    const CodePoint point = code_point_at(chars, at);
    if (point.value < 0 || point.value >= 512 || a.bytes[static_cast<std::size_t>(point.value)] < 0)
      return std::nullopt;
    out.push_back(static_cast<char>(a.bytes[static_cast<std::size_t>(point.value)]));
    at += point.bytes;
  }
  return out;
}

}  // namespace quire::tokenizer
