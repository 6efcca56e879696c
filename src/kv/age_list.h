// AgeList: nodes of the prefix tree in the order in which they may be evicted: up to 64 buckets (how often
// used, which priority), in each the oldest first. Links lie beside the nodes, indexed by them, so that every
// operation is O(1) and moving a node allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace quire::kv {

inline constexpr std::uint32_t kAgeBuckets = 64;

class AgeList {
 public:
  static constexpr std::uint32_t kNone = 0;  // no node has index 0

  // Room for nodes below `nodes`.
  void resize(std::size_t nodes) { links_.resize(nodes); }

  bool has(std::uint32_t node) const { return links_[node].listed; }
  // The node to evict first: the oldest of the lowest bucket. kNone: the list is empty.
  std::uint32_t front() const {
    return used_ == 0 ? kNone : heads_[static_cast<std::size_t>(__builtin_ctzll(used_))];
  }
  // The oldest of a bucket. kNone: it is empty.
  std::uint32_t front_of(std::uint32_t bucket) const { return heads_[bucket]; }
  // The first bucket from this one on that is not empty; kAgeBuckets: none.
  std::uint32_t first_bucket(std::uint32_t from = 0) const {
    const std::uint64_t rest = from < kAgeBuckets ? used_ >> from << from : 0;
    return rest == 0 ? kAgeBuckets : static_cast<std::uint32_t>(__builtin_ctzll(rest));
  }

  // REQUIRES a node that is not in the list.
  void push_back(std::uint32_t node, std::uint32_t bucket) { link(node, bucket, tails_[bucket], kNone); }
  // Before the first one of the bucket for which `before(that one)` holds. Looked for from both ends: few
  // steps where the node is old or young.
  template <class Before>
  void insert(std::uint32_t node, std::uint32_t bucket, Before before) {
    std::uint32_t front = heads_[bucket];
    std::uint32_t back = tails_[bucket];
    while (front != kNone && !before(front)) {
      if (!before(back)) return link(node, bucket, back, links_[back].next);
      front = links_[front].next;
      back = links_[back].previous;
    }
    link(node, bucket, front == kNone ? tails_[bucket] : links_[front].previous, front);
  }
  // Next to one that is in the list, in its bucket.
  void insert_after(std::uint32_t node, std::uint32_t other) {
    link(node, links_[other].bucket, other, links_[other].next);
  }
  void insert_before(std::uint32_t node, std::uint32_t other) {
    link(node, links_[other].bucket, links_[other].previous, other);
  }
  // Nothing happens when it is not in the list.
  void remove(std::uint32_t node) {
    Link& link = links_[node];
    if (!link.listed) return;
    (link.previous == kNone ? heads_[link.bucket] : links_[link.previous].next) = link.next;
    (link.next == kNone ? tails_[link.bucket] : links_[link.next].previous) = link.previous;
    if (heads_[link.bucket] == kNone) used_ &= ~(std::uint64_t{1} << link.bucket);
    link = Link{};
  }

 private:
  struct Link {
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    std::uint8_t bucket = 0;
    bool listed = false;
  };
  void link(std::uint32_t node, std::uint32_t bucket, std::uint32_t previous, std::uint32_t next) {
    links_[node] = Link{previous, next, static_cast<std::uint8_t>(bucket), true};
    (previous == kNone ? heads_[bucket] : links_[previous].next) = node;
    (next == kNone ? tails_[bucket] : links_[next].previous) = node;
    used_ |= std::uint64_t{1} << bucket;
  }

  std::vector<Link> links_;
  std::array<std::uint32_t, kAgeBuckets> heads_{};
  std::array<std::uint32_t, kAgeBuckets> tails_{};
  std::uint64_t used_ = 0;  // buckets with a node
};

}  // namespace quire::kv
