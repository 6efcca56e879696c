// One bit per page of a group, grouped by slab: set = free and in a slab of the group. Finds a page in one
// slab with preference for the start of a free run; the search reads at most pages_per_slab / 64 words.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace quire::kv {

class FreeBits {
 public:
  FreeBits(std::int64_t slabs, std::int64_t pages_per_slab);

  bool test(PageId page) const;
  void set(PageId page);
  void clear(PageId page);
  void set_slab(std::int64_t slab);
  void clear_slab(std::int64_t slab);
  std::int64_t count(std::int64_t slab) const;
  // The first page of eight free neighbours in the slab, else its first free page: a sequence that starts
  // there can go on in consecutive pages. REQUIRES a free page in the slab.
  PageId find(std::int64_t slab) const;

 private:
  struct Place {
    std::size_t word;
    std::uint64_t bit;
  };
  Place place(PageId page) const;

  std::int64_t pages_per_slab_;
  std::int64_t words_per_slab_;
  std::vector<std::uint64_t> words_;
};

}  // namespace quire::kv
