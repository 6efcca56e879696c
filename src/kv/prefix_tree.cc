// Nodes and namespaces. The other parts: tree_match.cc, tree_locks.cc, tree_publish.cc, tree_evict.cc,
// tree_check.cc.
#include "kv/prefix_tree.h"

#include <algorithm>

#include "base/check.h"
#include "kv/page_hash.h"

namespace quire::kv {
namespace {

bool less(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

PrefixTree::PrefixTree(PrefixTreeConfig config, PagePool& pool)
    : config_(config), pool_(pool), groups_(static_cast<std::size_t>(pool.groups())), first_nodes_({this}) {
  for (std::size_t g = 0; g < groups_; ++g)
    rules_.push_back(pool.group(GroupId{static_cast<std::uint32_t>(g)}).rule);
  page_tokens_ = rules_[0].page_tokens;
  for (const GroupRule& rule : rules_)
    QUIRE_CHECK(rule.page_tokens == page_tokens_, "pages of {} and {} tokens", rule.page_tokens,
                page_tokens_);
  new_index();
  if (config_.enabled) ghosts_.emplace(page_tokens_);
}

PrefixTree::~PrefixTree() {
  for (Node& node : nodes_) {
    if (!node.used) continue;
    const std::int64_t first = node.begin / page_tokens_;
    for (std::int64_t e = first; e < first + entries(node) - (node.lent ? 1 : 0); ++e) {
      for (std::size_t g = 0; g < groups_; ++g) {
        const PageId held = page(node, e, g);
        if (held != kPaddingPage) pool_.give(GroupId{static_cast<std::uint32_t>(g)}, held, owner(node));
      }
    }
  }
}

// ---- namespaces ----------------------------------------------------------------------------------------

NamespaceId PrefixTree::open(const NamespaceKey& key) {
  const auto found = roots_.find(key);
  if (found != roots_.end()) {
    ++spaces_.at(found->second).users;
    return NamespaceId{found->second};
  }
  const std::uint32_t root = new_index();
  nodes_[root].root = root;
  const auto placed = roots_.emplace(key, root).first;
  std::uint64_t seed = 1;
  for (const std::string* field : {&key.model, &key.adapter, &key.salt, &key.media})
    seed = hash_field(seed, *field);
  spaces_[root] = Space{&placed->first, seed, 1};
  return NamespaceId{root};
}

void PrefixTree::close(NamespaceId space) {
  Space& counted = spaces_.at(space.value);
  QUIRE_CHECK(counted.users > 0, "namespace {}", space.value);
  --counted.users;
  drop_root_if_unused(space.value);
}

void PrefixTree::drop_root_if_unused(std::uint32_t root) {
  Node& node = nodes_[root];
  const auto space = spaces_.find(root);
  if (space->second.users > 0 || node.locks > 0 || !node.children.empty()) return;
  roots_.erase(roots_.find(*space->second.key));
  spaces_.erase(space);
  node.used = false;
  ++node.generation;
  spare_nodes_.push_back(root);
}

// ---- nodes ---------------------------------------------------------------------------------------------

PrefixTree::Node& PrefixTree::node(NodeRef ref) {
  QUIRE_CHECK(
      ref.index < nodes_.size() && nodes_[ref.index].used && nodes_[ref.index].generation == ref.generation,
      "node {} of generation {} is gone", ref.index, ref.generation);
  return nodes_[ref.index];
}

const PrefixTree::Node& PrefixTree::node(NodeRef ref) const {
  return const_cast<PrefixTree*>(this)->node(ref);
}

std::uint32_t PrefixTree::new_index() {
  std::uint32_t index = static_cast<std::uint32_t>(nodes_.size());
  if (spare_nodes_.empty()) {
    nodes_.emplace_back().children = Children(ByFirstPage{this});
    leaves_.resize(nodes_.size());
    tails_.resize(nodes_.size());
    for (AgeList& list : windows_) list.resize(nodes_.size());
  } else {
    index = spare_nodes_.back();
    spare_nodes_.pop_back();
  }
  Node& node = nodes_[index];
  const std::uint32_t generation = node.generation;
  Node fresh;
  fresh.children = Children(ByFirstPage{this});
  node = std::move(fresh);
  node.generation = generation;
  node.used = index != 0;
  return index;
}

// Behind the parent's last token; not among its children yet: they are ordered by tokens.
std::uint32_t PrefixTree::make_node(std::uint32_t parent) {
  const std::uint32_t index = new_index();
  Node& node = nodes_[index];
  node.parent = parent;
  node.root = nodes_[parent].root;
  node.begin = nodes_[parent].end();
  ++stats_.nodes;
  return index;
}

void PrefixTree::drop_node(std::uint32_t index) {
  Node& node = nodes_[index];
  QUIRE_CHECK(node.locks == 0 && node.children.empty() && node.tokens.empty(), "node {} has {} locks", index,
              node.locks);
  leaves_.remove(index);
  tails_.remove(index);
  for (std::size_t g = 0; g < groups_; ++g) windows_[g].remove(index);
  node.used = false;
  ++node.generation;
  spare_nodes_.push_back(index);
  --stats_.nodes;
  if (nodes_[node.parent].parent == 0) drop_root_if_unused(node.parent);
}

std::int64_t PrefixTree::entries(const Node& node) const {
  return static_cast<std::int64_t>(node.pages.size() / groups_);
}

// `entry` counts from the namespace's first token, as in a block table.
PageId& PrefixTree::page(Node& node, std::int64_t entry, std::size_t group) {
  const auto at = static_cast<std::size_t>(entry - node.begin / page_tokens_);
  return node.pages[at * groups_ + group];
}

PageId PrefixTree::page(const Node& node, std::int64_t entry, std::size_t group) const {
  const auto at = static_cast<std::size_t>(entry - node.begin / page_tokens_);
  return node.pages[at * groups_ + group];
}

PageId PrefixTree::page_of(NodeRef ref, std::int64_t entry, GroupId group) const {
  const Node& at = node(ref);
  const std::int64_t first = at.begin / page_tokens_;
  QUIRE_CHECK(entry >= first && entry < first + entries(at), "entry {} of node {}", entry, ref.index);
  return page(at, entry, group.value);
}

std::span<const std::int32_t> PrefixTree::first_page(std::uint32_t index) const {
  const std::span<const std::int32_t> tokens = nodes_[index].tokens;
  return tokens.first(std::min(tokens.size(), static_cast<std::size_t>(page_tokens_)));
}

void PrefixTree::link(std::uint32_t parent, std::uint32_t child) {
  nodes_[parent].children.insert(child);
  if (nodes_[parent].parent == 0) first_nodes_.insert(child);
}

// REQUIRES that the child still has its first page, to be found by.
void PrefixTree::unlink(std::uint32_t parent, std::uint32_t child) {
  nodes_[parent].children.erase(child);
  if (nodes_[parent].parent == 0) first_nodes_.erase(child);
}

bool PrefixTree::ByFirstPage::operator()(std::uint32_t a, std::uint32_t b) const {
  return less(tree->first_page(a), tree->first_page(b));
}
bool PrefixTree::ByFirstPage::operator()(std::uint32_t a, std::span<const std::int32_t> b) const {
  return less(tree->first_page(a), b);
}
bool PrefixTree::ByFirstPage::operator()(std::span<const std::int32_t> a, std::uint32_t b) const {
  return less(a, tree->first_page(b));
}

bool PrefixTree::ByFirstPageThenIndex::operator()(std::uint32_t a, std::uint32_t b) const {
  const auto left = tree->first_page(a);
  const auto right = tree->first_page(b);
  const auto order =
      std::lexicographical_compare_three_way(left.begin(), left.end(), right.begin(), right.end());
  return order == 0 ? a < b : order < 0;
}
bool PrefixTree::ByFirstPageThenIndex::operator()(std::uint32_t a, std::span<const std::int32_t> b) const {
  return less(tree->first_page(a), b);
}

}  // namespace quire::kv
