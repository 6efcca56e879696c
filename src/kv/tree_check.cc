// The tree's part of the conservation rules: everything recomputed from the nodes.
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "kv/page_hash.h"
#include "kv/prefix_tree.h"

namespace quire::kv {

struct TreeAudit {
  const PrefixTree& tree;
  std::vector<std::string> violations = {};
  TreeStats sums = {};
  std::set<std::pair<std::size_t, std::uint32_t>> seen = {};
  std::set<std::uint32_t> first_nodes = {};
  std::map<std::uint32_t, PageCounts> held = {};  // per namespace

  using Node = PrefixTree::Node;

  template <class... Values>
  void violation(fmt::format_string<Values...> format, Values&&... values) {
    violations.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  void run() {
    for (std::uint32_t n = 1; n < tree.nodes_.size(); ++n) {
      const Node& node = tree.nodes_[n];
      if (!node.used) continue;
      if (node.parent != 0) check_node(n, node);
      check_children(n, node);
    }
    check_books();
  }

  void check_node(std::uint32_t n, const Node& node) {
    ++sums.nodes;
    sums.tokens += static_cast<std::int64_t>(node.tokens.size());
    const Node& parent = tree.nodes_[node.parent];
    if (parent.parent == 0) first_nodes.insert(n);
    const auto length = static_cast<std::int64_t>(node.tokens.size());
    const std::int64_t p = tree.page_tokens_;
    if (!parent.used || !parent.children.contains(n)) violation("node {} is not found under its key", n);
    if (length == 0 || node.begin != parent.end() || node.begin % p != 0 || node.root != parent.root)
      violation("node {} has tokens [{}, {}) behind {}", n, node.begin, node.end(), parent.end());
    if (!node.children.empty() && length % p != 0) violation("inner node {} has {} tokens", n, length);
    if (tree.entries(node) != (length + p - 1) / p ||
        node.hashes.size() != static_cast<std::size_t>(length / p))
      violation("node {}: {} entries and {} hashes for {} tokens", n, tree.entries(node), node.hashes.size(),
                length);
    if (node.lent && (length % p == 0 || node.locks == 0))
      violation("node {} has a lent page of {} tokens and {} locks", n, length, node.locks);
    if (node.locks == 0 && !tree.leaves_.has(n)) violation("node {} is unlocked and cannot be evicted", n);
    check_pages(n, node);
    check_hashes(n, node);
  }

  void check_pages(std::uint32_t n, const Node& node) {
    PageCounts owned;
    const std::int64_t first = node.begin / tree.page_tokens_;
    for (std::int64_t e = first; e < first + tree.entries(node); ++e) {
      const bool lent = node.lent && e + 1 == first + tree.entries(node);
      for (std::size_t g = 0; g < tree.groups_; ++g) {
        const PageId id = tree.page(node, e, g);
        const GroupId group{static_cast<std::uint32_t>(g)};
        if (id == kPaddingPage) {
          if (tree.keeps_all(g)) violation("node {}: no page for entry {} of group {}", n, e, g);
          continue;
        }
        const Owner owner = lent ? Owner{OwnerKind::request, node.lender.value} : tree.owner(node);
        if (!tree.pool_.holds(group, id, owner))
          violation("node {}: page {} of group {} is not held by {}", n, id.value, g, to_string(owner));
        if (lent && tree.pool_.sharers(group, id) != 1)
          violation("node {}: lent page {} of group {} has {} owners", n, id.value, g,
                    tree.pool_.sharers(group, id));
        if (!seen.emplace(g, id.value).second)
          violation("node {}: page {} of group {} stands for other tokens too", n, id.value, g);
        owned.of[g] += lent ? 0 : 1;
      }
    }
    for (std::size_t g = 0; g < tree.groups_; ++g) {
      sums.pages.of[g] += owned.of[g];
      held[node.root].of[g] += owned.of[g];
      if (node.locks == 0) sums.evictable.of[g] += owned.of[g];
      if (owned.of[g] != node.owned[g])
        violation("node {} counts {} pages of group {} and has {}", n, node.owned[g], g, owned.of[g]);
      if (!tree.keeps_all(g) && owned.of[g] > 0 && !tree.windows_[g].has(n) && !parked(n, g))
        violation("node {}: its window pages of group {} cannot be evicted", n, g);
    }
  }

  bool parked(std::uint32_t n, std::size_t g) const {
    const auto& list = tree.parked_[g];
    return std::find(list.begin(), list.end(), tree.ref(n)) != list.end();
  }

  void check_hashes(std::uint32_t n, const Node& node) {
    const auto p = static_cast<std::size_t>(tree.page_tokens_);
    const std::int64_t first = node.begin / tree.page_tokens_;
    for (std::size_t i = 0; i < node.hashes.size(); ++i) {
      const auto page = std::span(node.tokens).subspan(i * p, p);
      if (node.hashes[i] != hash_page(tree.hash_before(node, first + static_cast<std::int64_t>(i)), page))
        violation("node {}: the hash of entry {} is wrong", n, first + static_cast<std::int64_t>(i));
    }
  }

  void check_children(std::uint32_t n, const Node& node) {
    std::int32_t locks = 0;
    std::uint32_t before = 0;
    for (const std::uint32_t child : node.children) {
      locks += tree.nodes_[child].locks;
      if (tree.nodes_[child].parent != n) violation("node {} is no child of {}", child, n);
      if (before != 0) {
        const auto a = tree.first_page(before);
        const auto b = tree.first_page(child);
        const std::size_t most = std::min(a.size(), b.size());
        if (std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()))
          violation("nodes {} and {} begin alike", before, child);
      }
      before = child;
    }
    if (node.locks < locks) violation("node {} has {} locks, its children {}", n, node.locks, locks);
  }

  void check_books() {
    const TreeStats& stats = tree.stats_;
    if (sums.nodes != stats.nodes || sums.tokens != stats.tokens)
      violation("{} nodes with {} tokens are counted as {} with {}", sums.nodes, sums.tokens, stats.nodes,
                stats.tokens);
    for (std::size_t g = 0; g < tree.groups_; ++g) {
      if (sums.pages.of[g] != stats.pages.of[g] || sums.evictable.of[g] != stats.evictable.of[g])
        violation("group {}: {} pages, {} evictable, are counted as {} and {}", g, sums.pages.of[g],
                  sums.evictable.of[g], stats.pages.of[g], stats.evictable.of[g]);
    }
    // In its own order, which a node that grew in its place would break.
    if (first_nodes != std::set<std::uint32_t>(tree.first_nodes_.begin(), tree.first_nodes_.end()) ||
        !std::is_sorted(tree.first_nodes_.begin(), tree.first_nodes_.end(), tree.first_nodes_.key_comp()))
      violation("the nodes that begin prompts are not in order");
    for (const Holding& holding : tree.pool_.holdings()) {
      if (holding.owner.kind != OwnerKind::tree || held[holding.owner.id] == holding.pages) continue;
      for (std::size_t g = 0; g < tree.groups_; ++g)
        violation("namespace {} holds {} pages of group {}, its nodes {}", holding.owner.id,
                  holding.pages.of[g], g, held[holding.owner.id].of[g]);
    }
    for (const auto& [key, root] : tree.roots_) {
      const auto space = tree.spaces_.find(root);
      if (space == tree.spaces_.end() || space->second.key != &key) violation("namespace {} is lost", root);
    }
  }
};

std::vector<std::string> PrefixTree::check() const {
  TreeAudit audit{*this};
  audit.run();
  return std::move(audit.violations);
}

}  // namespace quire::kv
