// The references of one group's pages, each with its owner. The first reference lies in the page's own
// entry, so an unshared page costs no lookup; further ones form a chain in a pool of nodes that grows with
// sharing only and is reused. Not thread safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kv/owner.h"

namespace quire::kv {

class PageRefs {
 public:
  explicit PageRefs(std::int64_t pages) : first_(static_cast<std::size_t>(pages)) {}

  // Adds a reference. REQUIRES that `owner` holds none on this page yet.
  void add(PageId page, Owner owner);
  // Drops the owner's reference; false when it holds none.
  bool drop(PageId page, Owner owner);
  // Passes the reference of `from` on; false when it holds none.
  bool pass(PageId page, Owner from, Owner to);
  bool holds(PageId page, Owner owner) const;
  std::int32_t count(PageId page) const;

  // Calls visit(Owner) for every reference of the page.
  template <class Visit>
  void each(PageId page, Visit visit) const {
    const Node* node = &first_[page.value];
    if (node->owner.kind == OwnerKind::none) return;
    visit(node->owner);
    for (std::uint32_t next = node->next; next != kEnd; next = more_[next].next) visit(more_[next].owner);
  }

 private:
  static constexpr std::uint32_t kEnd = 0xffffffffu;
  struct Node {
    Owner owner;
    std::uint32_t next = kEnd;
  };

  std::vector<Node> first_;  // [pages]
  std::vector<Node> more_;   // further references
  std::uint32_t spare_ = kEnd;
};

}  // namespace quire::kv
