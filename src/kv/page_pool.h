// PagePool: the pages of all KV groups of one model, out of one arena of slabs. Host accounting only.
//
// Capacity first, then allocation: reserve() promises pages of all groups or nothing; the Reservation then
// takes them one by one, which cannot fail, and its destructor gives back what was promised and not taken.
// There is no other way to a page. Every page in use has references, each with an owner (owner.h).
//
// take and give are O(1) (a search inside one slab at most), need no device and, in a steady state, no heap.
// Pages of a sequence come in consecutive runs where there are any. Page 0 of a group is never handed out.
//
// Freed pages may be handed out again at once: with one stream their next writer follows every reader. A
// reader on another stream holds its own reference (OwnerKind::in_flight) until its event.
// Thread rule: one thread at a time. The pool outlives its reservations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kv/free_bits.h"
#include "kv/group.h"
#include "kv/owner.h"
#include "kv/page_refs.h"
#include "kv/slabs.h"

namespace quire::kv {

struct GroupConfig {
  std::string name;  // "full", "window"
  GroupRule rule;
};

struct PoolConfig {
  SlabPlan plan;
  std::int64_t slabs = 0;           // backed; at least plan.least_slabs()
  std::vector<GroupConfig> groups;  // as many as the plan has
  bool record_freed = false;        // debug builds: keep the list for take_freed()
};

struct GroupPage {
  GroupId group;
  PageId page;
};

// What one owner holds: a line of the ledger and of a leak report.
struct Holding {
  Owner owner;
  PageCounts pages;     // references
  PageCounts promised;  // reserved and not taken yet
};

class PagePool;

// Pages promised to one owner. Moves; gives the rest back when it goes.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }

  bool held() const { return pool_ != nullptr; }
  std::int64_t left(GroupId group) const;
  // Takes one promised page for the owner; prefers the page that follows `after` (kPaddingPage: no wish).
  // REQUIRES left(group) > 0.
  PageId take(GroupId group, PageId after);
  // Promises more: everything of `counts` or nothing (false).
  bool grow(const PageCounts& counts);
  // Keeps at most `counts` of the promise.
  void shrink_to(const PageCounts& counts);
  void release();

 private:
  friend class PagePool;
  Reservation(PagePool* pool, std::uint32_t index) : pool_(pool), index_(index) {}
  PagePool* pool_ = nullptr;
  std::uint32_t index_ = 0;
};

class PagePool {
 public:
  static Result<std::unique_ptr<PagePool>> create(PoolConfig config);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Promises pages of all groups, or nothing: an empty Reservation.
  Reservation reserve(Owner owner, const PageCounts& counts);
  // Whether reserve() would succeed now.
  bool can_promise(const PageCounts& counts) const;
  // Pages of each group that come neither from its own free ones nor its promises: what can_promise() needs
  // free slabs for.
  PageCounts shortage(const PageCounts& counts) const;
  // Whether an otherwise empty pool could hold `counts`: what can never be, can be refused at once.
  bool fits_empty(const PageCounts& counts) const;

  // Another owner's reference on a page in use.
  void adopt(GroupId group, PageId page, Owner owner);
  // Hands the reference of `from` over to `to`.
  void pass(GroupId group, PageId page, Owner from, Owner to);
  // Drops the owner's reference; the page is free when it was the last.
  void give(GroupId group, PageId page, Owner owner);

  int groups() const { return static_cast<int>(groups_.size()); }
  const GroupConfig& group(GroupId id) const { return config_.groups[id.value]; }
  const SlabPlan& plan() const { return config_.plan; }
  std::int64_t slabs() const { return config_.slabs; }
  std::int64_t free_slabs() const { return free_slabs_; }
  std::int64_t in_use(GroupId id) const { return groups_[id.value].used; }
  std::int64_t peak(GroupId id) const { return groups_[id.value].peak; }
  std::int64_t promised(GroupId id) const { return groups_[id.value].promised; }
  std::int32_t references(GroupId group, PageId page) const;
  // Of these, not counting transfers, which only read: 1 for a page that its owner may write.
  std::int32_t sharers(GroupId group, PageId page) const;
  bool holds(GroupId group, PageId page, Owner owner) const;
  // For reports: all ids of a group, page 0 and those of slabs that other groups have included; whether such
  // a page's slab belongs to another group now; visit(Owner) for every reference of one.
  std::int64_t page_ids(GroupId id) const { return groups_[id.value].per_slab * config_.slabs; }
  bool is_elsewhere(GroupId id, PageId page) const {
    const std::int32_t group =
        slabs_[page.value / static_cast<std::size_t>(groups_[id.value].per_slab)].group;
    return group >= 0 && group != static_cast<std::int32_t>(id.value);
  }
  template <class Visit>
  void owners(GroupId group, PageId page, Visit visit) const {
    groups_[group.value].refs.each(page, visit);
  }
  // Nothing in use and nothing promised.
  bool idle() const;
  // Every owner with what it holds, sorted. For reports: walks all pages.
  std::vector<Holding> holdings() const;
  // Pages freed since the last call, in order: a debug engine fills them with NaN before their next use.
  // Valid until the next call; empty unless record_freed.
  std::span<const GroupPage> take_freed();

  // The O(1) part of the conservation rules, and all of them (audit.h says how to use them). Each violation
  // is a sentence that names group, page and owners; no violation allocates nothing.
  std::vector<std::string> check_counters() const;
  std::vector<std::string> check_all() const;

 private:
  friend class Reservation;
  static constexpr std::int32_t kNoSlab = -1;

  struct Slab {
    std::int32_t group = -1;          // -1: free
    std::int64_t used = 0;            // pages handed out
    std::int32_t previous = kNoSlab;  // in the group's list of slabs with a free page
    std::int32_t next = kNoSlab;
    bool listed = false;
  };
  struct Group {
    FreeBits free_bits;
    PageRefs refs;
    std::int64_t per_slab = 0;
    std::int64_t owned_slabs = 0;
    std::int64_t free = 0;  // in slabs of the group
    std::int64_t used = 0;
    std::int64_t promised = 0;
    std::int64_t peak = 0;
    std::int32_t partial = kNoSlab;  // first slab with a free page
  };
  struct Promise {
    Owner owner;
    PageCounts left;
    bool live = false;
  };

  explicit PagePool(PoolConfig config);
  PageId take(GroupId group, PageId after, Owner owner);
  PageId choose(GroupId group, PageId after);
  void own_slab(GroupId group, std::int64_t slab);
  void free_slab(GroupId group, std::int64_t slab);
  std::int64_t pick_free_slab(GroupId group, PageId after) const;
  void link(Group& group, std::int32_t slab);
  void unlink(Group& group, std::int32_t slab);
  // Pages of slab `slab` that this group never hands out (page 0 of the head group).
  std::int64_t withheld(GroupId group, std::int64_t slab) const;
  std::string describe(GroupId group, PageId page) const;
  void check_group(GroupId group, std::vector<std::string>& violations) const;

  PoolConfig config_;
  std::vector<Slab> slabs_;
  std::vector<Group> groups_;
  std::vector<Promise> promises_;
  std::vector<std::uint32_t> spare_promises_;
  std::int64_t free_slabs_ = 0;
  std::int64_t lowest_free_slab_ = 0;  // no free slab below it
  std::vector<GroupPage> freed_;
  std::vector<GroupPage> freed_before_;
};

}  // namespace quire::kv
