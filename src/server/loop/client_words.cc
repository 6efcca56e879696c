#include "server/loop/client_words.h"

namespace quire::server {
namespace {

// "-x" or "--name" at the start of a word. A number is none.
bool names_a_flag(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == ' ';
    const char next = text[i + 1];
    if (begins && text[i] == '-' && (next == '-' || (next >= 'a' && next <= 'z'))) return true;
  }
  return false;
}

}  // namespace

std::string client_words(std::string_view message) {
  std::string words;
  while (true) {
    const std::size_t open = message.find(" (");
    const std::size_t close = open == std::string_view::npos ? open : message.find(')', open);
    if (close == std::string_view::npos) return words.append(message);
    const bool drop = names_a_flag(message.substr(open + 2, close - open - 2));
    words.append(message.substr(0, drop ? open : close + 1));
    message.remove_prefix(close + 1);
  }
}

}  // namespace quire::server
