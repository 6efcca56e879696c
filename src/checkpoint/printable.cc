#include "checkpoint/printable.h"

#include <fmt/format.h>

namespace quire::checkpoint {
namespace {

constexpr std::size_t kMostPrinted = 80;

// Bytes of the UTF-8 character that starts `text`; 0 when it is not one (overlong forms and surrogates
// are none).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                             : (lead & 0xf0) == 0xe0       ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char next = byte(1);
  const bool bad = (lead == 0xe0 && next < 0xa0) || (lead == 0xed && next >= 0xa0) ||
                   (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next >= 0x90);
  return bad ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t count = 0; !text.empty(); ++count) {
    if (count == kMostPrinted) return out + "...";
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0 || first < 0x20 || first == 0x7f) {
      out += fmt::format("\\x{:02x}", first);
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

bool is_plain_name(std::string_view text, std::size_t most) {
  if (text.empty() || text.size() > most) return false;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0 || first < 0x20 || first == 0x7f) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace quire::checkpoint
