#include "tokenizer/detokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/unicode.h"

namespace quire::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kHeldBytesMax = 1024;

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special, std::vector<TokenId> kept)
    : tokenizer_(tokenizer), skip_special_(skip_special), kept_(std::move(kept)) {}

std::string Detokenizer::push(TokenId id) {
  const bool skipped = skip_special_ && tokenizer_.is_special(id);
  if (skipped && std::find(kept_.begin(), kept_.end(), id) == kept_.end()) return {};
  held_ += tokenizer_.bytes_of(id);
  if (held_.empty()) return {};
  std::string text = lossy_utf8(held_);
  // All is held, not only the open character: a reader who compares with the reference's stream sees the same
  // pieces. A tail of broken bytes that never ends is cut off, at a character's border.
  if (text.ends_with(kReplacement)) {
    if (held_.size() < kHeldBytesMax) return {};
    std::size_t open = 0;
    while (open < 3 && open + 1 < held_.size() &&
           (static_cast<unsigned char>(held_[held_.size() - 1 - open]) & 0xC0) == 0x80)
      ++open;
    text = lossy_utf8(std::string_view(held_).substr(0, held_.size() - 1 - open));
    held_.erase(0, held_.size() - 1 - open);
    return text;
  }
  held_.clear();
  return text;
}

std::string Detokenizer::flush() {
  std::string text = lossy_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace quire::tokenizer
