// Leases: what is locked is not evicted. And splits, which must not confuse them.
#include <algorithm>

#include "base/check.h"
#include "kv/prefix_tree.h"

namespace quire::kv {

Lease PrefixTree::lock(const Match& match) {
  Lease lease;
  if (match.tokens == 0) return lease;
  std::uint32_t index = match.node.index;
  const Node& end = node(match.node);
  const std::int32_t whole = match.tokens - match.tokens % page_tokens_;
  if (!match.adoptable) {
    if (whole == end.begin) {
      index = end.parent;
    } else if (whole < end.end()) {
      index = split(index, whole - end.begin);
    }
  }
  lock_path(index);
  lease.path = ref(index);
  lease.tokens = nodes_[index].end();
  return lease;
}

NodeRef PrefixTree::lock_source(const Match& match) {
  const Node& end = node(match.node);
  QUIRE_CHECK(match.tokens % page_tokens_ > 0 && end.begin < match.tokens && match.tokens <= end.end(),
              "{} tokens end in node [{}, {})", match.tokens, end.begin, end.end());
  lock_path(match.node.index);
  return match.node;
}

void PrefixTree::adopt(const Match& match, SequenceId sequence, Lease& lease) {
  Node& leaf = node(match.node);
  QUIRE_CHECK(match.adoptable && lease.path == match.node && leaf.locks == 1 && !leaf.lent,
              "node {} has {} locks", match.node.index, leaf.locks);
  const std::int64_t entry = match.tokens / page_tokens_;
  for (std::size_t g = 0; g < groups_; ++g) {
    pool_.pass(GroupId{static_cast<std::uint32_t>(g)}, page(leaf, entry, g), owner(leaf),
               Owner{OwnerKind::request, sequence.value});
    count(leaf, g, -1);
  }
  leaf.lent = true;
  leaf.lender = sequence;
  lease.lent = match.node;
}

void PrefixTree::release(Lease& lease) {
  if (lease.path) {
    QUIRE_CHECK(node(lease.path).locks > 0, "node {} is not locked", lease.path.index);
    ++clock_;
    unlock_path(lease.path.index, /*used=*/true);
  }
  lease = Lease{};
}

void PrefixTree::release(NodeRef source) {
  QUIRE_CHECK(node(source).locks > 0, "node {} is not locked", source.index);
  unlock_path(source.index, /*used=*/false);
}

void PrefixTree::lock_path(std::uint32_t index) {
  for (std::uint32_t at = index; at != 0; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    if (node.locks++ > 0 || node.parent == 0) continue;
    for (std::size_t g = 0; g < groups_; ++g) stats_.evictable.of[g] -= pages_in(node, g);
  }
}

// What was used moves at once, also when others still lock it: one of them may be the source of a copy.
void PrefixTree::unlock_path(std::uint32_t index, bool used) {
  const std::uint32_t root = nodes_[index].root;
  for (std::uint32_t at = index; at != 0; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    QUIRE_CHECK(node.locks > 0, "node {} is not locked", at);
    const bool free = --node.locks == 0;
    if (node.parent == 0) continue;
    for (std::size_t g = 0; g < groups_ && free; ++g) stats_.evictable.of[g] += pages_in(node, g);
    if (used && config_.policy != EvictionPolicy::fifo) {
      relist(at);
    } else if (free) {
      keep_place(at);
    }
  }
  drop_root_if_unused(root);
}

void PrefixTree::touch(NodeRef end, std::int32_t tokens, std::int32_t priority) {
  if (!end) return;
  ++clock_;
  QUIRE_CHECK(node(end).locks > 0, "node {} is not locked", end.index);
  for (std::uint32_t at = end.index; nodes_[at].parent != 0; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    ++node.hits;
    node.priority = std::max(node.priority, priority);
    if (config_.policy != EvictionPolicy::fifo) node.stamp = clock_;
    for (std::size_t g = 0; g < groups_; ++g) {
      // Of a window only what the hit needed was used.
      if (keeps_all(g) || node.end() <= visible_begin(rules_[g], tokens) || !windows_[g].has(at)) continue;
      node.window_stamp = clock_;
      windows_[g].remove(at);
      windows_[g].push_back(at, 0);
    }
  }
}

void PrefixTree::count(Node& node, std::size_t group, std::int64_t pages) {
  node.owned[group] += static_cast<std::int32_t>(pages);
  stats_.pages.of[group] += pages;
  if (node.locks == 0) stats_.evictable.of[group] += pages;
}

// ---- order of eviction ---------------------------------------------------------------------------------

std::uint32_t PrefixTree::bucket(const Node& node) const {
  const std::uint32_t last = kAgeBuckets - 1;
  switch (config_.policy) {
    case EvictionPolicy::lfu:
      return std::min(node.hits, last);
    case EvictionPolicy::priority:
      return std::min(static_cast<std::uint32_t>(std::max(node.priority, 0)), last);
    default:
      return 0;
  }
}

bool PrefixTree::older(std::uint32_t a, std::uint32_t b) const {
  const Node& left = nodes_[a];
  const Node& right = nodes_[b];
  return left.stamp != right.stamp ? left.stamp < right.stamp : left.begin > right.begin;
}

std::int32_t PrefixTree::tail_tokens(const Node& node) const {
  return node.lent ? 0 : static_cast<std::int32_t>(node.tokens.size()) % page_tokens_;
}

std::uint32_t PrefixTree::tail_bucket(std::int32_t tokens) const {
  return static_cast<std::uint32_t>(tokens) * kAgeBuckets / static_cast<std::uint32_t>(page_tokens_);
}

// A node that was used is the youngest of its kind. Its path comes right after it, so parents stand behind
// their children.
void PrefixTree::relist(std::uint32_t index) {
  Node& node = nodes_[index];
  node.stamp = clock_;
  leaves_.remove(index);
  leaves_.push_back(index, bucket(node));
  tails_.remove(index);
  if (const std::int32_t tail = tail_tokens(node); tail > 0) tails_.push_back(index, tail_bucket(tail));
}

// A node that is unlocked again and was not used. It is out of a list only if it was met there as the oldest,
// and locked, so it belongs to the front; or if it is new, and the policy does not ask for use.
void PrefixTree::keep_place(std::uint32_t index) {
  const Node& node = nodes_[index];
  const auto before = [&](std::uint32_t other) { return older(index, other); };
  if (!leaves_.has(index)) leaves_.insert(index, bucket(node), before);
  const std::int32_t tail = tail_tokens(node);
  if (tail > 0 && !tails_.has(index)) tails_.insert(index, tail_bucket(tail), before);
}

// ---- split ---------------------------------------------------------------------------------------------

// The first `tokens` tokens (whole pages) of a node become its parent. The lower part keeps the index, so
// leases on it still cover the same path; the upper part gets their number.
std::uint32_t PrefixTree::split(std::uint32_t index, std::int32_t tokens) {
  QUIRE_CHECK(tokens > 0 && tokens % page_tokens_ == 0 &&
                  tokens < static_cast<std::int32_t>(nodes_[index].tokens.size()),
              "split node {} at {}", index, tokens);
  const std::uint32_t parent = nodes_[index].parent;
  unlink(parent, index);
  const std::uint32_t upper = make_node(parent);
  Node& low = nodes_[index];
  Node& high = nodes_[upper];
  const auto count = static_cast<std::ptrdiff_t>(tokens);
  const std::ptrdiff_t pages = count / page_tokens_;
  const std::ptrdiff_t ids = pages * static_cast<std::ptrdiff_t>(groups_);
  high.tokens.assign(low.tokens.begin(), low.tokens.begin() + count);
  high.pages.assign(low.pages.begin(), low.pages.begin() + ids);
  high.hashes.assign(low.hashes.begin(), low.hashes.begin() + pages);
  low.tokens.erase(low.tokens.begin(), low.tokens.begin() + count);
  low.pages.erase(low.pages.begin(), low.pages.begin() + ids);
  low.hashes.erase(low.hashes.begin(), low.hashes.begin() + pages);
  low.begin += tokens;
  low.parent = upper;
  high.locks = low.locks;
  high.hits = low.hits;
  high.priority = low.priority;
  high.stamp = low.stamp;
  high.window_stamp = low.window_stamp;
  low.window_hint.fill(0);
  for (std::size_t g = 0; g < groups_; ++g) {
    for (std::int64_t e = high.begin / page_tokens_; e < high.end() / page_tokens_; ++e)
      high.owned[g] += page(high, e, g) != kPaddingPage ? 1 : 0;
    low.owned[g] -= high.owned[g];
  }
  link(parent, upper);
  link(upper, index);
  split_lists(index, upper);
  return upper;
}

void PrefixTree::split_lists(std::uint32_t lower, std::uint32_t upper) {
  if (leaves_.has(lower)) leaves_.insert_after(upper, lower);
  for (std::size_t g = 0; g < groups_; ++g) {
    if (keeps_all(g) || pages_in(nodes_[upper], g) == 0) continue;
    if (windows_[g].has(lower)) {
      windows_[g].insert_before(upper, lower);
    } else {
      parked_[g].push_back(ref(upper));
    }
  }
}

}  // namespace quire::kv
