// What requests have computed joins the tree.
#include <algorithm>

#include "base/check.h"
#include "kv/page_hash.h"
#include "kv/prefix_tree.h"

namespace quire::kv {

void PrefixTree::publish(const Publication& publication, Lease& lease) {
  if (!config_.enabled || publication.space.value == 0 || publication.tokens.empty()) return;
  std::uint32_t from = publication.space.value;
  // From the last node that surely is this request's as a whole: a partial tail may go on with other tokens.
  if (lease.path) {
    from = lease.path.index;
    QUIRE_CHECK(node(lease.path).locks > 0, "node {} is not locked", from);
    while (nodes_[from].end() > lease.tokens || nodes_[from].end() % page_tokens_ != 0)
      from = nodes_[from].parent;
  }
  QUIRE_CHECK(nodes_[from].end() <= static_cast<std::int32_t>(publication.tokens.size()),
              "request {} publishes {} tokens behind {}", publication.sequence.value,
              publication.tokens.size(), nodes_[from].end());
  const std::int64_t tokens_before = stats_.tokens;
  const std::uint32_t end = insert(publication, lease, from);
  if (nodes_[end].parent == 0) return;
  const Node& last = nodes_[end];
  const NodeRef before = lease.path;
  lock_path(end);
  lease.path = ref(end);
  lease.tokens = last.end();
  lease.lent = last.lent && last.lender == publication.sequence ? lease.path : NodeRef{};
  ++clock_;
  if (config_.policy != EvictionPolicy::fifo || stats_.tokens > tokens_before)
    stamp_path(end, publication.priority);
  if (before) unlock_path(before.index, /*used=*/true);
}

// Walks down from `from`, adds what is missing, returns the node at the end of it (its whole pages, and the
// tail when it is this request's).
std::uint32_t PrefixTree::insert(const Publication& publication, const Lease& lease, std::uint32_t from) {
  std::uint32_t at = from;
  for (;;) {
    const auto rest = publication.tokens.subspan(static_cast<std::size_t>(nodes_[at].end()));
    if (rest.empty()) return at;
    std::int32_t common = 0;
    const std::uint32_t child = best_child(nodes_[at], rest, common);
    if (child == 0) return insert_rest(publication, lease, at);
    const Node& next = nodes_[child];
    const auto size = static_cast<std::int32_t>(next.tokens.size());
    const std::int32_t whole = common - common % page_tokens_;
    if (common == size && whole == size) {
      fill_windows(publication, child);
      at = child;
      continue;
    }
    if (common == static_cast<std::int32_t>(rest.size())) {  // all is known
      if (next.lent && next.lender == publication.sequence) return child;
      if (whole > 0) at = split(child, whole);
      if (whole > 0) fill_windows(publication, at);
      return at;
    }
    if (common == size) {  // a leaf with a partial tail: it goes on
      fill_windows(publication, child);
      append(publication, child);
      return child;
    }
    if (whole > 0) {
      at = split(child, whole);
      fill_windows(publication, at);
    }
    return insert_rest(publication, lease, at);
  }
}

// What follows `parent` shares no page with any of its children: it becomes a child, or the parent grows.
std::uint32_t PrefixTree::insert_rest(const Publication& publication, const Lease& lease,
                                      std::uint32_t parent) {
  Node& node = nodes_[parent];
  if (node.end() == static_cast<std::int32_t>(publication.tokens.size())) return parent;
  const std::int32_t own_locks = lease.path.index == parent ? 1 : 0;
  if (node.parent != 0 && node.children.empty() && node.locks == own_locks) {
    append(publication, parent);
    return parent;
  }
  const std::uint32_t leaf = make_node(parent);
  append(publication, leaf);
  link(parent, leaf);
  if (nodes_[leaf].locks == 0) relist(leaf);
  return leaf;
}

// The node's tokens go on to the end of the publication. A partial last page is replaced by the request's:
// that one has the same tokens, and more.
void PrefixTree::append(const Publication& publication, std::uint32_t index) {
  Node& node = nodes_[index];
  const std::int64_t first = node.end() / page_tokens_;
  if (node.end() % page_tokens_ != 0) {
    for (std::size_t g = 0; g < groups_; ++g) {
      const PageId old = page(node, first, g);
      if (node.lent || old == kPaddingPage) continue;
      count(node, g, -1);
      pool_.give(GroupId{static_cast<std::uint32_t>(g)}, old, owner(node));
    }
    node.lent = false;
    node.pages.resize(node.pages.size() - groups_);
  }
  for (std::int32_t& hint : node.window_hint)
    hint = std::min(hint, static_cast<std::int32_t>(first - node.begin / page_tokens_));
  const auto rest = publication.tokens.subspan(static_cast<std::size_t>(node.end()));
  // Among the children of its parent the node keeps its place; a beginning that other namespaces share may
  // not.
  FirstNodes::node_type moved;
  if (nodes_[node.parent].parent == 0 && entries(node) == 0) moved = first_nodes_.extract(index);
  node.tokens.insert(node.tokens.end(), rest.begin(), rest.end());
  if (moved) first_nodes_.insert(std::move(moved));
  stats_.tokens += static_cast<std::int64_t>(rest.size());
  const std::int64_t end = (node.end() + page_tokens_ - 1) / page_tokens_;
  for (std::int64_t entry = first; entry < end; ++entry) put_entry(publication, index, entry);
}

void PrefixTree::put_entry(const Publication& publication, std::uint32_t index, std::int64_t entry) {
  Node& node = nodes_[index];
  const bool whole = (entry + 1) * page_tokens_ <= node.end();
  for (std::size_t g = 0; g < groups_; ++g) {
    const GroupId group{static_cast<std::uint32_t>(g)};
    const PageId id = publication.rows[g][static_cast<std::size_t>(entry)];
    QUIRE_CHECK(id != kPaddingPage || !keeps_all(g), "request {} has no page {} of group {}",
                publication.sequence.value, entry, g);
    node.pages.push_back(id);
    if (!whole || id == kPaddingPage) continue;
    pool_.adopt(group, id, owner(node));
    count(node, g, 1);
    list_window(index, g);
  }
  if (!whole) {
    node.lent = true;
    node.lender = publication.sequence;
    return;
  }
  const auto at = static_cast<std::size_t>(entry * page_tokens_ - node.begin);
  const std::uint64_t before = hash_before(node, entry);
  node.hashes.push_back(
      hash_page(before, std::span(node.tokens).subspan(at, static_cast<std::size_t>(page_tokens_))));
  note_event(EventKind::stored, node.hashes.back(), before);
}

// Pages of windows that the tree has lost and the request still has.
void PrefixTree::fill_windows(const Publication& publication, std::uint32_t index) {
  Node& node = nodes_[index];
  for (std::size_t g = 0; g < groups_; ++g) {
    if (keeps_all(g)) continue;
    bool filled = false;
    for (std::int64_t e = node.begin / page_tokens_; e < node.end() / page_tokens_; ++e) {
      const PageId id = publication.rows[g][static_cast<std::size_t>(e)];
      if (id == kPaddingPage || page(node, e, g) != kPaddingPage) continue;
      page(node, e, g) = id;
      pool_.adopt(GroupId{static_cast<std::uint32_t>(g)}, id, owner(node));
      count(node, g, 1);
      filled = true;
    }
    if (!filled) continue;
    node.window_hint[g] = 0;
    list_window(index, g);
  }
}

void PrefixTree::list_window(std::uint32_t index, std::size_t group) {
  if (keeps_all(group)) return;
  nodes_[index].window_stamp = clock_;
  windows_[group].remove(index);
  windows_[group].push_back(index, 0);
}

// The path was used: from the leaf up, so that parents come behind their children.
void PrefixTree::stamp_path(std::uint32_t index, std::int32_t priority) {
  for (std::uint32_t at = index; nodes_[at].parent != 0; at = nodes_[at].parent) {
    Node& node = nodes_[at];
    node.stamp = clock_;
    node.priority = std::max(node.priority, priority);
    if (config_.policy != EvictionPolicy::fifo) continue;
    leaves_.remove(at);
    leaves_.push_back(at, 0);
    tails_.remove(at);
  }
}

void PrefixTree::seal(SequenceId sequence, Lease& lease, std::int32_t tokens) {
  if (!lease.lent) return;
  Node& leaf = node(lease.lent);
  const std::int64_t entry = leaf.end() / page_tokens_;
  if (leaf.lent && leaf.lender == sequence && tokens < (entry + 1) * page_tokens_) return;
  if (leaf.lent && leaf.lender == sequence) {
    leaf.lent = false;
    for (std::size_t g = 0; g < groups_; ++g) {
      const PageId id = page(leaf, entry, g);
      if (id == kPaddingPage) continue;
      pool_.adopt(GroupId{static_cast<std::uint32_t>(g)}, id, owner(leaf));
      count(leaf, g, 1);
      list_window(lease.lent.index, g);
    }
  }
  lease.lent = NodeRef{};
}

std::array<PageId, kMaxGroups> PrefixTree::settle(SequenceId sequence, const Lease& lease) {
  std::array<PageId, kMaxGroups> kept{};
  if (!lease.lent) return kept;
  Node& leaf = node(lease.lent);
  if (!leaf.lent || leaf.lender != sequence) return kept;  // another request's longer page took its place
  const std::int64_t entry = leaf.end() / page_tokens_;
  leaf.lent = false;
  for (std::size_t g = 0; g < groups_; ++g) {
    const PageId id = page(leaf, entry, g);
    if (id == kPaddingPage) continue;
    pool_.pass(GroupId{static_cast<std::uint32_t>(g)}, id, Owner{OwnerKind::request, sequence.value},
               owner(leaf));
    count(leaf, g, 1);
    list_window(lease.lent.index, g);
    kept[g] = id;
  }
  return kept;
}

}  // namespace quire::kv
