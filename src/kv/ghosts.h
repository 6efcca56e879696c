// Ghosts: the pages that the prefix tree evicted last, for the question why something is not there any more.
// A page is known by the hash of all before it (page_hash.h) and by its tokens, so that a prompt which ends
// inside a page, or shares only the first part of it, still learns that it was there. kGhosts pages are
// remembered, 16 KiB for each token of a page. Nothing is allocated after the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/miss.h"

namespace quire::kv {

inline constexpr std::size_t kGhosts = 4096;

class Ghosts {
 public:
  struct Found {
    std::int32_t tokens = 0;  // that the page and the question begin with; 0: no such page
    std::uint64_t at = 0;
    Pressure pressure = Pressure::admission;
  };

  explicit Ghosts(std::int32_t page_tokens);

  // A page of 1 to page_tokens tokens went. The same one twice counts once, as it went last.
  void add(std::uint64_t before, std::span<const std::int32_t> tokens, std::uint64_t at, Pressure pressure);
  // The remembered page behind `before` that shares most tokens with the beginning of `tokens`.
  Found longest(std::uint64_t before, std::span<const std::int32_t> tokens) const;

 private:
  struct Ghost {
    std::uint64_t before = 0;
    std::uint64_t at = 0;
    Pressure pressure = Pressure::admission;
    std::int32_t tokens = 0;
  };
  std::span<const std::int32_t> tokens_of(std::uint32_t slot) const;
  std::size_t place(std::uint64_t before, std::span<const std::int32_t> tokens) const;

  std::size_t page_tokens_;
  std::unique_ptr<std::int32_t[]> tokens_;  // [kGhosts, page_tokens]
  std::vector<Ghost> ghosts_;               // slots, the oldest is overwritten
  std::vector<std::uint32_t> order_;        // slots by what is before them, then by tokens
  std::size_t next_ = 0;                    // slot to overwrite once all are used
};

}  // namespace quire::kv
