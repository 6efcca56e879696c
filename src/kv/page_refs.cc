#include "kv/page_refs.h"

#include "base/check.h"

namespace quire::kv {

void PageRefs::add(PageId page, Owner owner) {
  QUIRE_CHECK(owner.kind != OwnerKind::none && !holds(page, owner), "page {} and {}", page.value,
              to_string(owner));
  Node& first = first_[page.value];
  if (first.owner.kind == OwnerKind::none) {
    first.owner = owner;
    return;
  }
  std::uint32_t index = spare_;
  if (index == kEnd) {
    index = static_cast<std::uint32_t>(more_.size());
    more_.push_back(Node{});
  } else {
    spare_ = more_[index].next;
  }
  more_[index] = Node{owner, first.next};
  first.next = index;
}

bool PageRefs::drop(PageId page, Owner owner) {
  Node& first = first_[page.value];
  if (first.owner == owner) {
    const std::uint32_t next = first.next;
    if (next == kEnd) {
      first.owner = Owner{};
      return true;
    }
    first = more_[next];
    more_[next] = Node{Owner{}, spare_};
    spare_ = next;
    return true;
  }
  for (std::uint32_t* link = &first.next; *link != kEnd; link = &more_[*link].next) {
    const std::uint32_t index = *link;
    if (more_[index].owner != owner) continue;
    *link = more_[index].next;
    more_[index] = Node{Owner{}, spare_};
    spare_ = index;
    return true;
  }
  return false;
}

bool PageRefs::pass(PageId page, Owner from, Owner to) {
  QUIRE_CHECK(!holds(page, to), "page {} and {}", page.value, to_string(to));
  if (!drop(page, from)) return false;
  add(page, to);
  return true;
}

bool PageRefs::holds(PageId page, Owner owner) const {
  bool found = false;
  each(page, [&](Owner held) { found = found || held == owner; });
  return found;
}

std::int32_t PageRefs::count(PageId page) const {
  std::int32_t count = 0;
  each(page, [&](Owner) { ++count; });
  return count;
}

}  // namespace quire::kv
