// PrefixTree: the tokens whose KV is in pages, as one radix tree per namespace. Host accounting only: it says
// what to copy and never copies.
//
// Inner nodes hold whole pages; a leaf may end in a partial page. Equality is equality of all tokens. A match
// is the longest prefix that is valid in every group: full = all keys; window and chunk = what the row behind
// the hit sees. It is token-granular at any page size: whole pages are shared by reference, and of the page
// in which the hit ends the first tokens are copied (lock_source()), or the page changes hands
// (Match::adoptable, adopt()) when nobody else has it.
//
// Pages. The tree holds a reference (OwnerKind::tree) on every page of its own. The tail page of a running
// request is still written to, so it is only lent: the leaf knows its first tokens and may be copied from,
// the request stays the only owner until it ends and settle() hands the page over.
//
// Locks. lock() and publish() lock the whole path down to a node and hand out a Lease; release() presents it.
// Locks count per node; a split gives the upper part the count of the lower one, so a lease always releases
// exactly what it acquired. Locked nodes are never evicted. A window's pages on a locked path that no request
// holds may be, for most of a path needs none: whoever locks a match takes references on those that it needs
// before it makes room, and so pins the source of a copy (OwnerKind::transfer).
//
// Eviction takes leaves from their end, page by page, in the order of the policy (a logical clock, no time),
// and window pages before anything that is as old: O(1) amortised per page. A partial page of t tokens costs
// as much as a whole one and saves less, so it counts as (P / t)^3 times as old as it is.
//
// Off: publish() does nothing, so nothing ever hits; all other code is the same.
// Thread rule: one thread at a time. The pool outlives the tree; leases end before it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "kv/age_list.h"
#include "kv/ghosts.h"
#include "kv/miss.h"
#include "kv/page_pool.h"

namespace quire::kv {

using NamespaceId = StrongId<struct NamespaceTag>;  // 0: none

// What must be equal before KV may be shared, besides the tokens. Compared field by field.
struct NamespaceKey {
  std::string model;    // version of the weights and of the cache's format
  std::string adapter;  // and its version
  std::string salt;     // scope: a tenant, a session
  std::string media;    // hashes of what stands in the prompt besides text
  friend auto operator<=>(const NamespaceKey&, const NamespaceKey&) = default;
};

enum class EvictionPolicy : std::uint8_t {
  lru,       // least recently used
  lfu,       // least often hit, then least recently used
  fifo,      // by the time of the last insertion
  priority,  // lowest priority of the requests that used it, then least recently used
};
inline constexpr std::array<std::string_view, 4> kEvictionNames = {"lru", "lfu", "fifo", "priority"};

struct PrefixTreeConfig {
  bool enabled = true;
  EvictionPolicy policy = EvictionPolicy::lru;
  std::int32_t copy_min_tokens = 1;  // fewer tokens of a page are computed again instead of copied
  bool record_events = false;        // keep the last ones for events()
};

// A node at a moment: stale once the node is gone, also when its index is used again.
struct NodeRef {
  std::uint32_t index = 0;  // 0: none
  std::uint32_t generation = 0;
  explicit operator bool() const { return index != 0; }
  friend bool operator==(const NodeRef&, const NodeRef&) = default;
};

// What one request holds of the tree. Ended by release().
struct Lease {
  NodeRef path;             // locked from the root to here
  NodeRef lent;             // leaf that knows the request's tail page
  std::int32_t tokens = 0;  // that the path had when it was locked; others may have added to its last node
};

struct Match {
  NamespaceId space;
  std::int32_t tokens = 0;  // that hit
  NodeRef node;             // in which they end
  bool adoptable = false;   // the partial page at their end may change hands
  MissReport miss;          // of the next token
};

// A place to go on from when the same tokens are looked up again.
struct Probe {
  NodeRef node;
  std::int32_t tokens = 0;
};

// Tokens that a request has computed, for publish().
struct Publication {
  NamespaceId space;
  SequenceId sequence;
  std::int32_t priority = 0;
  std::span<const std::int32_t> tokens;                       // from the first on; their KV is valid
  std::array<std::span<const PageId>, kMaxGroups> rows = {};  // per group; 0: released
};

enum class EventKind : std::uint8_t { stored, removed, cleared };
// One whole page of tokens came or went; or (cleared) nothing is left.
struct TreeEvent {
  EventKind kind = EventKind::stored;
  std::uint64_t hash = 0;    // page_hash.h
  std::uint64_t before = 0;  // hash of the page before it, or the namespace's seed
  friend bool operator==(const TreeEvent&, const TreeEvent&) = default;
};

inline constexpr std::size_t kMostEvents = std::size_t{1} << 16;

struct TreeStats {
  std::int64_t nodes = 0;
  PageCounts pages;      // the tree's own
  PageCounts evictable;  // of these, in nodes that nobody has locked
  std::int64_t tokens = 0;
  std::int64_t evicted_pages = 0;
};

// A node as reports show it.
struct NodeReport {
  std::uint32_t index = 0;
  std::uint32_t parent = 0;  // 0: it begins a prompt
  NamespaceId space;
  std::int32_t begin = 0;  // tokens before it
  std::int32_t tokens = 0;
  std::int64_t pages = 0;  // the tree's own, over all groups
  std::int32_t locks = 0;
  std::uint32_t hits = 0;
  std::uint32_t children = 0;
};

// Tokens that both begin with.
std::int32_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

class PrefixTree {
 public:
  PrefixTree(PrefixTreeConfig config, PagePool& pool);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  bool enabled() const { return config_.enabled; }

  // The namespace of a key; every open() needs its close(). Namespaces without tokens and users go away.
  NamespaceId open(const NamespaceKey& key);
  void close(NamespaceId space);

  // The longest valid prefix of `tokens` of at most `limit` tokens. Changes nothing, recency included.
  Match match(NamespaceId space, std::span<const std::int32_t> tokens, std::int32_t limit) const;
  // Only the number of equal tokens, windows and copy limit aside. Goes on from where the last probe of these
  // tokens ended, so asking again costs little while nothing has changed there.
  std::int32_t probe(NamespaceId space, std::span<const std::int32_t> tokens, Probe& at) const;

  // Locks the whole pages of the match (splitting a node where they end inside it).
  Lease lock(const Match& match);
  // The node that holds the partial page at the end of the match, locked until release(NodeRef): the copy's
  // source. That is no use of it: the copy has its tokens too. REQUIRES match.tokens inside a page, and the
  // match's lease is held.
  NodeRef lock_source(const Match& match);
  // Takes the partial page, at once after lock(): it is the request's and lent to the tree. settle() takes it
  // back. REQUIRES match.adoptable.
  void adopt(const Match& match, SequenceId sequence, Lease& lease);
  // Books a hit of `tokens` tokens on a lease's path: recency, counts, priority.
  void touch(NodeRef end, std::int32_t tokens, std::int32_t priority);

  // Pages of the locked path, in order: visit(entry, group, page); page 0 where a window has none.
  template <class Visit>
  void pages(NodeRef end, Visit visit) const;
  // The page of one entry of this node.
  PageId page_of(NodeRef node, std::int64_t entry, GroupId group) const;

  // Adds what the request has computed, and moves its lock to the end of it. Whole pages become the tree's
  // too, a partial one is lent. What the tree has already stays as it is (only lost window pages are filled
  // in). REQUIRES that the tokens go on from the lease's path.
  void publish(const Publication& publication, Lease& lease);
  // The request has written (or planned to) `tokens` tokens: a lent page that is full now is the tree's too,
  // as any page that nobody writes to. To be told before a window gives such a page back.
  void seal(SequenceId sequence, Lease& lease, std::int32_t tokens);
  // The request ends: its lent tail page becomes the tree's. Returns the pages that the request must not give
  // back (0: none), per group.
  std::array<PageId, kMaxGroups> settle(SequenceId sequence, const Lease& lease);
  void release(Lease& lease);
  void release(NodeRef source);

  // Evicts until the pool can promise `counts`; false, and little or nothing evicted, when it cannot.
  bool make_room(const PageCounts& counts, Pressure pressure);
  // Evicts everything that is not locked.
  void clear();

  TreeStats stats() const { return stats_; }
  // For reports: node(NodeReport) and page(index, group, page) for every node and page of it, a lent one
  // included. Walks the tree.
  template <class VisitNode, class VisitPage>
  void each_node(VisitNode visit_node, VisitPage visit_page) const;
  // Appends the events from number `since` on to `target`; they count from 0. Returns the number of the first
  // of them. That is larger than `since` when those before it are forgotten: kMostEvents are kept.
  std::uint64_t events(std::uint64_t since, std::vector<TreeEvent>& target) const;
  // Structure, counters, locks and pages, all recomputed; each violation is a sentence.
  std::vector<std::string> check() const;

 private:
  friend struct TreeAudit;
  struct ByFirstPage {  // children in the order of their first page's tokens
    using is_transparent = void;
    const PrefixTree* tree;
    bool operator()(std::uint32_t a, std::uint32_t b) const;
    bool operator()(std::uint32_t a, std::span<const std::int32_t> b) const;
    bool operator()(std::span<const std::int32_t> a, std::uint32_t b) const;
  };
  using Children = std::set<std::uint32_t, ByFirstPage>;
  // The nodes that begin prompts, of all namespaces, in the order of their first page's tokens. Several may
  // begin alike there, so the index decides.
  struct ByFirstPageThenIndex {
    using is_transparent = void;
    const PrefixTree* tree;
    bool operator()(std::uint32_t a, std::uint32_t b) const;
    bool operator()(std::uint32_t a, std::span<const std::int32_t> b) const;
  };
  using FirstNodes = std::set<std::uint32_t, ByFirstPageThenIndex>;
  struct Node {
    std::uint32_t generation = 0;
    std::uint32_t parent = 0;
    std::uint32_t root = 0;  // its namespace; roots: itself
    std::int32_t begin = 0;  // tokens before this node
    bool used = false;
    bool lent = false;  // the last page is the lender's
    SequenceId lender;
    std::int32_t locks = 0;
    std::uint32_t hits = 0;
    std::int32_t priority = 0;
    std::uint64_t stamp = 0;                             // last use
    std::uint64_t window_stamp = 0;                      // last use of its window pages
    std::array<std::int32_t, kMaxGroups> owned{};        // pages that are the tree's own, per group
    std::array<std::int32_t, kMaxGroups> window_hint{};  // entries below it have no page of the group
    std::vector<std::int32_t> tokens;
    std::vector<PageId> pages;          // [entries, groups]
    std::vector<std::uint64_t> hashes;  // [whole pages]
    Children children;
    std::int32_t end() const { return begin + static_cast<std::int32_t>(tokens.size()); }
  };
  struct Space {  // beside a root
    const NamespaceKey* key = nullptr;
    std::uint64_t seed = 0;
    std::int64_t users = 0;
  };
  struct Walk {  // where tokens stop being known: inside the node, or behind it
    std::uint32_t node = 0;
    std::int32_t tokens = 0;
  };

  // prefix_tree.cc
  Node& node(NodeRef ref);
  const Node& node(NodeRef ref) const;
  NodeRef ref(std::uint32_t index) const { return {index, nodes_[index].generation}; }
  std::uint32_t new_index();
  std::uint32_t make_node(std::uint32_t parent);
  void drop_node(std::uint32_t index);
  void drop_root_if_unused(std::uint32_t root);
  std::span<const std::int32_t> first_page(std::uint32_t index) const;
  void link(std::uint32_t parent, std::uint32_t child);
  void unlink(std::uint32_t parent, std::uint32_t child);
  std::int64_t entries(const Node& node) const;
  PageId& page(Node& node, std::int64_t entry, std::size_t group);
  PageId page(const Node& node, std::int64_t entry, std::size_t group) const;
  bool keeps_all(std::size_t group) const { return rules_[group].keep == Keep::all; }
  Owner owner(const Node& node) const { return Owner{OwnerKind::tree, node.root}; }

  // tree_match.cc
  std::uint32_t best_child(const Node& node, std::span<const std::int32_t> rest, std::int32_t& common) const;
  Walk descend(std::uint32_t from, std::span<const std::int32_t> tokens) const;
  std::uint32_t holder(std::uint32_t from, std::int32_t tokens) const;
  std::int32_t valid_tokens(std::uint32_t end, std::int32_t tokens) const;
  std::int32_t valid_in_group(std::uint32_t end, std::size_t group, std::int32_t tokens) const;
  bool adoptable(const Node& node, std::int32_t tokens) const;
  MissReport why_missed(std::uint32_t root, Walk walk, std::span<const std::int32_t> tokens) const;
  std::int32_t longest_first_page(std::span<const std::int32_t> page) const;

  // tree_locks.cc
  std::uint32_t split(std::uint32_t index, std::int32_t tokens);
  void split_lists(std::uint32_t lower, std::uint32_t upper);
  void lock_path(std::uint32_t index);
  // used: it was read, or written, since it was locked.
  void unlock_path(std::uint32_t index, bool used);
  void relist(std::uint32_t index);
  void keep_place(std::uint32_t index);
  std::uint32_t bucket(const Node& node) const;
  // Tokens of its own partial page; 0: none.
  std::int32_t tail_tokens(const Node& node) const;
  std::uint32_t tail_bucket(std::int32_t tokens) const;
  bool older(std::uint32_t a, std::uint32_t b) const;
  // The tree's own pages of a group in the node; and the books of them.
  std::int64_t pages_in(const Node& node, std::size_t group) const { return node.owned[group]; }
  void count(Node& node, std::size_t group, std::int64_t pages);

  // tree_publish.cc
  std::uint32_t insert(const Publication& publication, const Lease& lease, std::uint32_t from);
  std::uint32_t insert_rest(const Publication& publication, const Lease& lease, std::uint32_t parent);
  void append(const Publication& publication, std::uint32_t index);
  void put_entry(const Publication& publication, std::uint32_t index, std::int64_t entry);
  void fill_windows(const Publication& publication, std::uint32_t index);
  void list_window(std::uint32_t index, std::size_t group);
  void stamp_path(std::uint32_t index, std::int32_t priority);

  // tree_evict.cc
  bool may_succeed(const PageCounts& counts) const;
  bool evict_one(const PageCounts& shortage, Pressure pressure);
  std::uint32_t oldest_leaf();
  std::uint32_t next_leaf();
  std::uint32_t oldest_tail(std::uint32_t bucket);
  bool goes_before(std::uint32_t tail, std::uint32_t leaf) const;
  bool evict_window_page(std::size_t group);
  bool evict_window_page_of(std::uint32_t index, std::size_t group, bool& held);
  bool restore_parked(std::size_t group);
  void cut_entry(std::uint32_t index, Pressure pressure);
  void note_event(EventKind kind, std::uint64_t hash, std::uint64_t before);
  std::uint64_t hash_before(const Node& node, std::int64_t entry) const;

  PrefixTreeConfig config_;
  PagePool& pool_;
  std::size_t groups_ = 0;
  std::int32_t page_tokens_ = 1;
  std::vector<GroupRule> rules_;
  std::deque<Node> nodes_;  // 0 is nobody; references stay valid while nodes are added
  std::vector<std::uint32_t> spare_nodes_;
  std::map<NamespaceKey, std::uint32_t> roots_;
  std::unordered_map<std::uint32_t, Space> spaces_;  // by root
  AgeList leaves_;                                   // and inner nodes: a parent comes behind its children
  AgeList tails_;                                    // leaves with a partial page, by how full it is
  std::array<AgeList, kMaxGroups> windows_;          // nodes with pages of a window or chunk group
  std::array<std::vector<NodeRef>, kMaxGroups> parked_;  // of these, met with pages that requests held
  std::optional<Ghosts> ghosts_;                         // when enabled
  FirstNodes first_nodes_;                               // over all namespaces
  std::vector<TreeEvent> events_;                        // the last ones: number n at n % kMostEvents
  std::uint64_t next_event_ = 0;
  std::uint64_t clock_ = 0;
  TreeStats stats_;
};

template <class Visit>
void PrefixTree::pages(NodeRef end, Visit visit) const {
  std::vector<std::uint32_t> path;
  for (std::uint32_t at = end.index; nodes_[at].parent != 0; at = nodes_[at].parent) path.push_back(at);
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    const Node& node = nodes_[*at];
    const std::int64_t first = node.begin / page_tokens_;
    for (std::int64_t e = first; e < first + entries(node); ++e)
      for (std::size_t g = 0; g < groups_; ++g)
        visit(e, GroupId{static_cast<std::uint32_t>(g)}, page(node, e, g));
  }
}

template <class VisitNode, class VisitPage>
void PrefixTree::each_node(VisitNode visit_node, VisitPage visit_page) const {
  for (std::uint32_t n = 1; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    if (!node.used || node.parent == 0) continue;
    NodeReport report{.index = n, .space = NamespaceId{node.root}, .begin = node.begin};
    if (nodes_[node.parent].parent != 0) report.parent = node.parent;
    report.tokens = static_cast<std::int32_t>(node.tokens.size());
    for (std::size_t g = 0; g < groups_; ++g) report.pages += node.owned[g];
    report.locks = node.locks;
    report.hits = node.hits;
    report.children = static_cast<std::uint32_t>(node.children.size());
    visit_node(report);
    for (std::size_t p = 0; p < node.pages.size(); ++p)
      if (node.pages[p] != kPaddingPage)
        visit_page(n, GroupId{static_cast<std::uint32_t>(p % groups_)}, node.pages[p]);
  }
}

}  // namespace quire::kv
