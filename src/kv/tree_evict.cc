// Giving pages back under pressure: from the ends of the oldest leaves, and windows' pages.
#include <algorithm>

#include "base/check.h"
#include "kv/prefix_tree.h"

namespace quire::kv {
bool PrefixTree::make_room(const PageCounts& counts, Pressure pressure) {
  if (pool_.can_promise(counts)) return true;
  if (!may_succeed(counts)) return false;
  while (!pool_.can_promise(counts)) {
    if (!evict_one(pool_.shortage(counts), pressure)) return false;
  }
  return true;
}

// Whether evicting all that may be evicted could be enough: else nothing is thrown away in vain. Optimistic
// where whole slabs must come free, and for windows' pages that requests may hold.
bool PrefixTree::may_succeed(const PageCounts& counts) const {
  const PageCounts shortage = pool_.shortage(counts);
  std::int64_t slabs = pool_.free_slabs();
  std::int64_t missing = 0;
  for (std::size_t g = 0; g < groups_; ++g) {
    const std::int64_t have = keeps_all(g) ? stats_.evictable.of[g] : stats_.pages.of[g];
    const std::int64_t per_slab = pool_.plan().pages_per_slab[g];
    const std::int64_t short_of = std::max<std::int64_t>(0, shortage.of[g] - have);
    missing += (short_of + per_slab - 1) / per_slab;
    if (have > shortage.of[g]) slabs += (have - shortage.of[g]) / per_slab + 1;
  }
  return missing <= slabs;
}

// One page or one entry of a leaf. A window group that is short gives of its own; otherwise the oldest goes,
// and at equal age the window's page.
bool PrefixTree::evict_one(const PageCounts& shortage, Pressure pressure) {
  bool all_short = false;
  for (std::size_t g = 0; g < groups_; ++g) {
    if (keeps_all(g)) {
      all_short = all_short || shortage.of[g] > 0;
    } else if (shortage.of[g] > 0 && evict_window_page(g)) {
      return true;
    }
  }
  const std::uint32_t leaf = next_leaf();
  for (std::size_t g = 0; g < groups_; ++g) {
    if (keeps_all(g) || (all_short && leaf != 0 && windows_[g].front() != AgeList::kNone &&
                         nodes_[windows_[g].front()].window_stamp > nodes_[leaf].stamp))
      continue;
    if (evict_window_page(g)) return true;
  }
  if (leaf == 0) return false;
  cut_entry(leaf, pressure);
  return true;
}

// 0: every leaf is locked. Locked nodes leave the list here; they come back when they are unlocked.
std::uint32_t PrefixTree::oldest_leaf() {
  for (;;) {
    const std::uint32_t front = leaves_.front();
    if (front == AgeList::kNone) return 0;
    if (nodes_[front].locks == 0) {
      QUIRE_CHECK(nodes_[front].children.empty(), "inner node {} stands before its children", front);
      return front;
    }
    leaves_.remove(front);
  }
}

// The leaf whose last page saves least. Every kind of partial page, by how full it is, stands in its own
// order of age, so only the fronts are compared.
std::uint32_t PrefixTree::next_leaf() {
  std::uint32_t best = oldest_leaf();
  if (best == 0) return 0;
  for (std::uint32_t bucket = tails_.first_bucket(); bucket < kAgeBuckets;
       bucket = tails_.first_bucket(bucket + 1)) {
    const std::uint32_t tail = oldest_tail(bucket);
    if (tail != 0 && goes_before(tail, best)) best = tail;
  }
  return best;
}

// 0: none that may be evicted. What is found locked or without a partial page leaves the list, as above.
std::uint32_t PrefixTree::oldest_tail(std::uint32_t bucket) {
  for (;;) {
    const std::uint32_t front = tails_.front_of(bucket);
    if (front == AgeList::kNone || (nodes_[front].locks == 0 && tail_tokens(nodes_[front]) > 0)) return front;
    tails_.remove(front);
  }
}

// Whether the partial page at the end of one leaf goes before the last page of another one. A page that holds
// t of P tokens saves t / P as much, and an old prefix is not that much less likely to come again than a
// young one: the factor on the age is (P / t)^3. Of the powers 0, 1, 2, 3, 5 and all that were tried over
// traffic, page and cache sizes (bench/hit_rates.py) the third is the least that never hits less than whole
// pages do.
bool PrefixTree::goes_before(std::uint32_t tail, std::uint32_t leaf) const {
  const Node& part = nodes_[tail];
  const Node& other = nodes_[leaf];
  if (const std::uint32_t a = bucket(part), b = bucket(other); a != b) return a < b;
  const auto cube_of_last = [this](const Node& node) {
    const std::int32_t partial = tail_tokens(node);
    const auto tokens = static_cast<std::uint64_t>(partial > 0 ? partial : page_tokens_);
    return tokens * tokens * tokens;
  };
  return (clock_ - part.stamp) * cube_of_last(other) > (clock_ - other.stamp) * cube_of_last(part);
}

bool PrefixTree::evict_window_page(std::size_t group) {
  bool restored = false;
  for (;;) {
    const std::uint32_t front = windows_[group].front();
    if (front == AgeList::kNone) {
      // Pages that requests held when they were met may be free of them by now.
      if (restored || !restore_parked(group)) return false;
      restored = true;
      continue;
    }
    bool held = false;
    if (evict_window_page_of(front, group, held)) return true;
    windows_[group].remove(front);
    if (held) parked_[group].push_back(ref(front));
  }
}

// The first page of the node that nobody but the tree holds. `held`: there are others.
bool PrefixTree::evict_window_page_of(std::uint32_t index, std::size_t group, bool& held) {
  Node& node = nodes_[index];
  const GroupId id{static_cast<std::uint32_t>(group)};
  const std::int64_t first = node.begin / page_tokens_;
  const std::int64_t own = entries(node) - (node.lent ? 1 : 0);
  for (std::int64_t e = node.window_hint[group]; e < own; ++e) {
    PageId& at = page(node, first + e, group);
    if (at == kPaddingPage) {
      if (!held) node.window_hint[group] = static_cast<std::int32_t>(e);
      continue;
    }
    if (pool_.references(id, at) > 1) {
      held = true;
      continue;
    }
    pool_.give(id, at, owner(node));
    at = kPaddingPage;
    count(node, group, -1);
    ++stats_.evicted_pages;
    return true;
  }
  return false;
}

bool PrefixTree::restore_parked(std::size_t group) {
  for (const NodeRef parked : parked_[group]) {
    const Node& node = nodes_[parked.index];
    if (!node.used || node.generation != parked.generation || windows_[group].has(parked.index)) continue;
    if (pages_in(node, group) > 0) windows_[group].push_back(parked.index, 0);
  }
  parked_[group].clear();
  return windows_[group].front() != AgeList::kNone;
}

// The last entry of an unlocked leaf goes, and the leaf with its last one.
void PrefixTree::cut_entry(std::uint32_t index, Pressure pressure) {
  Node& node = nodes_[index];
  QUIRE_CHECK(node.locks == 0 && node.children.empty() && !node.lent, "node {} is in use", index);
  const std::int64_t entry = node.begin / page_tokens_ + entries(node) - 1;
  const bool whole = node.end() % page_tokens_ == 0;
  for (std::size_t g = 0; g < groups_; ++g) {
    const PageId id = page(node, entry, g);
    if (id == kPaddingPage) continue;
    pool_.give(GroupId{static_cast<std::uint32_t>(g)}, id, owner(node));
    count(node, g, -1);
    ++stats_.evicted_pages;
  }
  const auto keep = static_cast<std::size_t>(entry * page_tokens_ - node.begin);
  const std::uint64_t before = hash_before(node, entry);
  if (whole) {
    ++clock_;
    note_event(EventKind::removed, node.hashes.back(), before);
    node.hashes.pop_back();
  } else {
    tails_.remove(index);
  }
  ghosts_->add(before, std::span(node.tokens).subspan(keep), clock_, pressure);
  if (keep == 0) unlink(node.parent, index);
  stats_.tokens -= static_cast<std::int64_t>(node.tokens.size() - keep);
  node.tokens.resize(keep);
  node.pages.resize(node.pages.size() - groups_);
  if (keep == 0) drop_node(index);
}

void PrefixTree::clear() {
  for (std::uint32_t leaf = oldest_leaf(); leaf != 0; leaf = oldest_leaf()) {
    cut_entry(leaf, Pressure::clearing);
  }
  if (stats_.nodes == 0) note_event(EventKind::cleared, 0, 0);
}

// ---- events ----------------------------------------------------------------------------------------------

std::uint64_t PrefixTree::hash_before(const Node& node, std::int64_t entry) const {
  const std::int64_t at = entry - node.begin / page_tokens_;
  if (at > 0) return node.hashes[static_cast<std::size_t>(at - 1)];
  const Node& parent = nodes_[node.parent];
  return parent.parent == 0 ? spaces_.at(node.root).seed : parent.hashes.back();
}

void PrefixTree::note_event(EventKind kind, std::uint64_t hash, std::uint64_t before) {
  if (!config_.record_events) return;
  if (events_.size() < kMostEvents) events_.emplace_back();
  events_[next_event_++ % kMostEvents] = TreeEvent{kind, hash, before};
}

std::uint64_t PrefixTree::events(std::uint64_t since, std::vector<TreeEvent>& target) const {
  const std::uint64_t first = std::min(next_event_, std::max(since, next_event_ - events_.size()));
  for (std::uint64_t n = first; n < next_event_; ++n) target.push_back(events_[n % kMostEvents]);
  return first;
}

}  // namespace quire::kv
