// The arena as equal slabs. A group takes and returns whole slabs, so memory moves between groups with the
// load; the address of a page is arena + id * stride for every group. Numbers only: no memory is owned here.
//
// Slab s of a group holds its ids [s * n, (s + 1) * n), n = pages per slab, and n * stride = slab bytes
// exactly. Page 0 of every group is therefore the start of slab 0: padded rows write there, and it must
// overlap nothing that is handed out. Slab 0 belongs for good to the head group, the one with the largest
// stride, whose own page 0 covers the page 0 of all others: exactly one page is lost, whatever the groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/group.h"

namespace quire::kv {

struct SlabPlan {
  std::int64_t slab_bytes = 0;
  GroupId head;                              // owns slab 0
  std::vector<std::int64_t> page_strides;    // per group, as asked or padded (KvLayout::padded_to)
  std::vector<std::int64_t> pages_per_slab;  // per group

  int groups() const { return static_cast<int>(page_strides.size()); }
  // Slabs that hold `counts` pages of the groups at the same time, slab 0 included.
  std::int64_t slabs_for(const PageCounts& counts) const;
  // Fewest slabs with which every group can hold a page.
  std::int64_t least_slabs() const;
  // Most pages of `group` when it has every slab it can have out of `slabs`.
  std::int64_t most_pages(GroupId group, std::int64_t slabs) const;
};

// Chooses the slab size for groups with these page strides in an arena of about `arena_bytes`: a common
// multiple of the strides, tens of the largest page where the arena is large enough for that. A stride is
// padded only where that loses less than the slab size it avoids (half a slab per group stands idle).
// The number of slabs is the ledger's decision afterwards: arena bytes / slab_bytes.
Result<SlabPlan> plan_slabs(std::span<const std::int64_t> page_strides, std::int64_t arena_bytes);

}  // namespace quire::kv
