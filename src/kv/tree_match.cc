// Looking up: the longest known prefix, what of it is valid in every group, and why it is no longer.
#include <algorithm>

#include "base/check.h"
#include "kv/prefix_tree.h"

namespace quire::kv {
std::int32_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return static_cast<std::int32_t>(n);
}

// The child that shares most tokens with `rest`; 0 when there is none. No child is a prefix of another one,
// so in their order the best is a neighbour of where `rest` would stand.
std::uint32_t PrefixTree::best_child(const Node& node, std::span<const std::int32_t> rest,
                                     std::int32_t& common) const {
  common = 0;
  std::uint32_t best = 0;
  const auto consider = [&](std::uint32_t child) {
    const std::int32_t shared = common_prefix(nodes_[child].tokens, rest);
    if (shared <= common) return;
    common = shared;
    best = child;
  };
  const auto page = rest.first(std::min(rest.size(), static_cast<std::size_t>(page_tokens_)));
  const auto at = node.children.lower_bound(page);
  if (at != node.children.end()) consider(*at);
  if (at != node.children.begin()) consider(*std::prev(at));
  return best;
}

PrefixTree::Walk PrefixTree::descend(std::uint32_t from, std::span<const std::int32_t> tokens) const {
  Walk walk{from, nodes_[from].end()};
  while (walk.tokens < static_cast<std::int32_t>(tokens.size())) {
    std::int32_t common = 0;
    const std::uint32_t child =
        best_child(nodes_[walk.node], tokens.subspan(static_cast<std::size_t>(walk.tokens)), common);
    if (child == 0) break;
    walk = Walk{child, walk.tokens + common};
    if (walk.tokens < nodes_[child].end()) break;
  }
  return walk;
}

// The node on the path to `from` that has token tokens - 1; the root for 0.
std::uint32_t PrefixTree::holder(std::uint32_t from, std::int32_t tokens) const {
  while (nodes_[from].parent != 0 && nodes_[from].begin >= tokens) from = nodes_[from].parent;
  return from;
}

// The most of `tokens` behind which a row finds all keys that it sees, in the groups that forget.
std::int32_t PrefixTree::valid_tokens(std::uint32_t end, std::int32_t tokens) const {
  for (std::size_t g = 0; g < groups_ && tokens > 0;) {
    const std::int32_t valid = keeps_all(g) ? tokens : valid_in_group(end, g, tokens);
    g = valid == tokens ? g + 1 : 0;  // a shorter hit sees other keys: all groups again
    tokens = valid;
  }
  return tokens;
}

// `tokens`, or the end of the page before the last one that is missing: any longer prefix needs that one too.
// The page in which a hit ends is needed even if none of its keys is seen: the request goes on in a copy of
// it, and what it publishes has all keys.
std::int32_t PrefixTree::valid_in_group(std::uint32_t end, std::size_t group, std::int32_t tokens) const {
  std::uint32_t at = holder(end, tokens);
  const std::int64_t first = visible_begin(rules_[group], tokens) / page_tokens_;
  for (std::int64_t e = (tokens - 1) / page_tokens_; e >= first; --e) {
    while (nodes_[at].begin / page_tokens_ > e) at = nodes_[at].parent;
    if (page(nodes_[at], e, group) == kPaddingPage) return static_cast<std::int32_t>(e * page_tokens_);
  }
  return tokens;
}

bool PrefixTree::adoptable(const Node& node, std::int32_t tokens) const {
  if (tokens != node.end() || tokens % page_tokens_ == 0 || node.lent || node.locks > 0) return false;
  for (std::size_t g = 0; g < groups_; ++g) {
    const PageId last = page(node, tokens / page_tokens_, g);
    if (last == kPaddingPage || pool_.references(GroupId{static_cast<std::uint32_t>(g)}, last) != 1)
      return false;
  }
  return true;
}

Match PrefixTree::match(NamespaceId space, std::span<const std::int32_t> tokens, std::int32_t limit) const {
  Match match;
  match.space = space;
  if (!config_.enabled || space.value == 0) {
    match.miss.why = Miss::off;
    return match;
  }
  const auto most = std::min(tokens.size(), static_cast<std::size_t>(std::max(limit, 0)));
  const Walk walk = descend(space.value, tokens.first(most));
  std::int32_t hit = walk.tokens;
  if (hit < static_cast<std::int32_t>(most)) match.miss = why_missed(space.value, walk, tokens);
  const std::int32_t partial = hit % page_tokens_;
  if (partial > 0 && partial < config_.copy_min_tokens && !adoptable(nodes_[walk.node], hit)) {
    hit -= partial;
    match.miss = MissReport{Miss::below_copy_limit};
  }
  match.tokens = valid_tokens(walk.node, hit);
  if (match.tokens < hit) match.miss = MissReport{Miss::window_gone};
  const std::uint32_t end = holder(walk.node, match.tokens);
  match.node = ref(end);
  match.adoptable = match.tokens > 0 && adoptable(nodes_[end], match.tokens);
  return match;
}

std::int32_t PrefixTree::probe(NamespaceId space, std::span<const std::int32_t> tokens, Probe& at) const {
  if (!config_.enabled || space.value == 0) return 0;
  std::uint32_t from = space.value;
  if (at.node && nodes_[at.node.index].used && nodes_[at.node.index].generation == at.node.generation) {
    const Node& last = nodes_[at.node.index];
    if (last.end() == at.tokens && at.tokens % page_tokens_ == 0) {
      from = at.node.index;
    } else if (last.begin <= at.tokens && at.tokens <= last.end()) {
      from = last.parent == 0 ? at.node.index : last.parent;
    }
  }
  const Walk walk = descend(from, tokens);
  // The next probe starts behind the last node that is known as a whole.
  const Node& end = nodes_[walk.node];
  const bool whole = walk.tokens == end.end() && walk.tokens % page_tokens_ == 0;
  const std::uint32_t last = whole || end.parent == 0 ? walk.node : end.parent;
  at = Probe{ref(last), nodes_[last].end()};
  return walk.tokens;
}

// Most tokens that a first page of some namespace shares with this one: of a neighbour of where it would
// stand.
std::int32_t PrefixTree::longest_first_page(std::span<const std::int32_t> page) const {
  const auto at = first_nodes_.lower_bound(page);
  std::int32_t most = 0;
  if (at != first_nodes_.end()) most = common_prefix(nodes_[*at].tokens, page);
  if (at != first_nodes_.begin()) most = std::max(most, common_prefix(nodes_[*std::prev(at)].tokens, page));
  return most;
}

// Of the page in which the hit ended, as far as the prompt goes on in it, at least half of the rest must have
// been there: nearly every prompt shares a token or two with some other one.
MissReport PrefixTree::why_missed(std::uint32_t root, Walk walk, std::span<const std::int32_t> tokens) const {
  const std::int64_t entry = walk.tokens / page_tokens_;
  const std::int64_t begin = entry * page_tokens_;
  const auto rest = tokens.subspan(static_cast<std::size_t>(begin));
  const auto page = rest.first(std::min(rest.size(), static_cast<std::size_t>(page_tokens_)));
  const auto known = static_cast<std::int32_t>(walk.tokens - begin);
  const auto size = static_cast<std::int32_t>(page.size());
  const auto explains = [&](std::int32_t common) { return 2 * (common - known) >= size - known; };
  const std::uint32_t before = holder(walk.node, static_cast<std::int32_t>(begin));
  const std::uint64_t chain =
      nodes_[before].parent == 0
          ? spaces_.at(root).seed
          : nodes_[before].hashes[static_cast<std::size_t>(entry - nodes_[before].begin / page_tokens_ - 1)];
  const Ghosts::Found ghost = ghosts_->longest(chain, page);
  if (explains(ghost.tokens)) return MissReport{Miss::evicted, ghost.pressure, ghost.at};
  if (entry == 0 && explains(longest_first_page(page))) return MissReport{Miss::other_namespace};
  return MissReport{Miss::no_prefix};
}

}  // namespace quire::kv
