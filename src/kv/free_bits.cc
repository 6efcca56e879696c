#include "kv/free_bits.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire::kv {
namespace {

// Bit 8k is set where bits 8k .. 8k + 7 of `word` all are.
std::uint64_t full_bytes(std::uint64_t word) {
  word &= word >> 1;
  word &= word >> 2;
  word &= word >> 4;
  return word & 0x0101010101010101u;
}

}  // namespace

FreeBits::FreeBits(std::int64_t slabs, std::int64_t pages_per_slab)
    : pages_per_slab_(pages_per_slab),
      words_per_slab_((pages_per_slab + 63) / 64),
      words_(static_cast<std::size_t>(slabs * words_per_slab_)) {}

FreeBits::Place FreeBits::place(PageId page) const {
  const std::int64_t slab = page.value / pages_per_slab_;
  const std::int64_t index = page.value % pages_per_slab_;
  return Place{static_cast<std::size_t>(slab * words_per_slab_ + index / 64),
               std::uint64_t{1} << (index % 64)};
}

bool FreeBits::test(PageId page) const {
  const Place at = place(page);
  return at.word < words_.size() && (words_[at.word] & at.bit) != 0;
}

void FreeBits::set(PageId page) {
  const Place at = place(page);
  words_[at.word] |= at.bit;
}

void FreeBits::clear(PageId page) {
  const Place at = place(page);
  words_[at.word] &= ~at.bit;
}

void FreeBits::set_slab(std::int64_t slab) {
  for (std::int64_t w = 0; w < words_per_slab_; ++w) {
    const std::int64_t bits = std::min<std::int64_t>(64, pages_per_slab_ - w * 64);
    words_[static_cast<std::size_t>(slab * words_per_slab_ + w)] = ~std::uint64_t{0} >> (64 - bits);
  }
}

void FreeBits::clear_slab(std::int64_t slab) {
  for (std::int64_t w = 0; w < words_per_slab_; ++w)
    words_[static_cast<std::size_t>(slab * words_per_slab_ + w)] = 0;
}

std::int64_t FreeBits::count(std::int64_t slab) const {
  std::int64_t count = 0;
  for (std::int64_t w = 0; w < words_per_slab_; ++w) {
    count += std::popcount(words_[static_cast<std::size_t>(slab * words_per_slab_ + w)]);
  }
  return count;
}

PageId FreeBits::find(std::int64_t slab) const {
  std::int64_t first = -1;
  for (std::int64_t w = 0; w < words_per_slab_; ++w) {
    const std::uint64_t word = words_[static_cast<std::size_t>(slab * words_per_slab_ + w)];
    const std::int64_t base = slab * pages_per_slab_ + w * 64;
    if (const std::uint64_t run = full_bytes(word)) {
      return PageId{static_cast<std::uint32_t>(base + std::countr_zero(run))};
    }
    if (first < 0 && word != 0) first = base + std::countr_zero(word);
  }
  QUIRE_CHECK(first >= 0, "no free page in slab {}", slab);
  return PageId{static_cast<std::uint32_t>(first)};
}

}  // namespace quire::kv
