#include "kv/page_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace quire::kv {
namespace {

GroupId group_id(std::size_t index) { return GroupId{static_cast<std::uint32_t>(index)}; }

std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

// ---- Reservation ---------------------------------------------------------------------------------------

Reservation::Reservation(Reservation&& other) noexcept : pool_(other.pool_), index_(other.index_) {
  other.pool_ = nullptr;
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  release();
  pool_ = other.pool_;
  index_ = other.index_;
  other.pool_ = nullptr;
  return *this;
}

std::int64_t Reservation::left(GroupId group) const {
  return pool_ == nullptr ? 0 : pool_->promises_[index_].left[group];
}

PageId Reservation::take(GroupId group, PageId after) {
  QUIRE_CHECK(left(group) > 0, "nothing of group {} is promised", group.value);
  PagePool::Promise& promise = pool_->promises_[index_];
  --promise.left[group];
  --pool_->groups_[group.value].promised;
  return pool_->take(group, after, promise.owner);
}

bool Reservation::grow(const PageCounts& counts) {
  QUIRE_CHECK(held(), "an empty reservation cannot grow");
  if (!pool_->can_promise(counts)) return false;
  for (std::size_t g = 0; g < pool_->groups_.size(); ++g) {
    pool_->promises_[index_].left.of[g] += counts.of[g];
    pool_->groups_[g].promised += counts.of[g];
  }
  return true;
}

void Reservation::shrink_to(const PageCounts& counts) {
  if (!held()) return;
  for (std::size_t g = 0; g < pool_->groups_.size(); ++g) {
    std::int64_t& left = pool_->promises_[index_].left.of[g];
    const std::int64_t surplus = std::max<std::int64_t>(0, left - counts.of[g]);
    left -= surplus;
    pool_->groups_[g].promised -= surplus;
  }
}

void Reservation::release() {
  if (!held()) return;
  shrink_to(PageCounts{});
  pool_->promises_[index_].live = false;
  pool_->spare_promises_.push_back(index_);
  pool_ = nullptr;
}

// ---- PagePool ------------------------------------------------------------------------------------------

Result<std::unique_ptr<PagePool>> PagePool::create(PoolConfig config) {
  const SlabPlan& plan = config.plan;
  QUIRE_CHECK(plan.groups() > 0 && config.groups.size() == plan.page_strides.size(), "groups={} planned={}",
              config.groups.size(), plan.groups());
  if (config.slabs < plan.least_slabs()) {
    return no_resources(
        fmt::format("the KV arena has {} slabs of {} bytes, {} groups need {} at least: give the cache "
                    "{} bytes or more",
                    config.slabs, plan.slab_bytes, plan.groups(), plan.least_slabs(),
                    plan.least_slabs() * plan.slab_bytes));
  }
  for (const std::int64_t per_slab : plan.pages_per_slab) {
    if (config.slabs > std::numeric_limits<std::uint32_t>::max() / per_slab) {
      return bad_input(fmt::format("{} slabs of {} pages are more than 2^32 pages: use a larger page size",
                                   config.slabs, per_slab));
    }
  }
  return std::unique_ptr<PagePool>(new PagePool(std::move(config)));
}

PagePool::PagePool(PoolConfig config)
    : config_(std::move(config)), slabs_(static_cast<std::size_t>(config_.slabs)) {
  for (const std::int64_t per_slab : config_.plan.pages_per_slab) {
    groups_.push_back(Group{FreeBits(config_.slabs, per_slab), PageRefs(config_.slabs * per_slab), per_slab});
  }
  free_slabs_ = config_.slabs;
  own_slab(config_.plan.head, 0);
  constexpr std::size_t kPromises = 64;  // room before the lists grow
  promises_.reserve(kPromises);
  spare_promises_.reserve(kPromises);
  if (config_.record_freed) {
    constexpr std::size_t kFreedPerStep = 4096;
    freed_.reserve(kFreedPerStep);
    freed_before_.reserve(kFreedPerStep);
  }
}

bool PagePool::can_promise(const PageCounts& counts) const {
  std::int64_t slabs = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::int64_t missing = group.promised + counts.of[g] - group.free;
    if (missing > 0) slabs += ceil_div(missing, group.per_slab);
  }
  return slabs <= free_slabs_;
}

PageCounts PagePool::shortage(const PageCounts& counts) const {
  PageCounts missing;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    missing.of[g] = std::max<std::int64_t>(0, groups_[g].promised + counts.of[g] - groups_[g].free);
  return missing;
}

bool PagePool::fits_empty(const PageCounts& counts) const {
  return config_.plan.slabs_for(counts) <= config_.slabs;
}

Reservation PagePool::reserve(Owner owner, const PageCounts& counts) {
  if (!can_promise(counts)) return Reservation();
  std::uint32_t index = static_cast<std::uint32_t>(promises_.size());
  if (spare_promises_.empty()) {
    promises_.push_back(Promise{});
    spare_promises_.reserve(promises_.capacity());  // release() must not allocate
  } else {
    index = spare_promises_.back();
    spare_promises_.pop_back();
  }
  promises_[index] = Promise{owner, PageCounts{}, true};
  Reservation reservation(this, index);
  reservation.grow(counts);
  return reservation;
}

void PagePool::adopt(GroupId group, PageId page, Owner owner) {
  QUIRE_CHECK(references(group, page) > 0, "{} is free", describe(group, page));
  groups_[group.value].refs.add(page, owner);
}

void PagePool::pass(GroupId group, PageId page, Owner from, Owner to) {
  QUIRE_CHECK(groups_[group.value].refs.pass(page, from, to), "{} is not held by {}", describe(group, page),
              to_string(from));
}

void PagePool::give(GroupId id, PageId page, Owner owner) {
  Group& group = groups_[id.value];
  QUIRE_CHECK(group.refs.drop(page, owner), "{} is not held by {}", describe(id, page), to_string(owner));
  if (group.refs.count(page) > 0) return;
  const std::int64_t index = page.value / group.per_slab;
  Slab& slab = slabs_[static_cast<std::size_t>(index)];
  group.free_bits.set(page);
  ++group.free;
  --group.used;
  --slab.used;
  if (config_.record_freed) freed_.push_back(GroupPage{id, page});
  if (slab.used == 0 && withheld(id, index) == 0) {
    free_slab(id, index);
  } else {
    link(group, static_cast<std::int32_t>(index));
  }
}

PageId PagePool::take(GroupId id, PageId after, Owner owner) {
  const PageId page = choose(id, after);
  Group& group = groups_[id.value];
  const std::int64_t index = page.value / group.per_slab;
  Slab& slab = slabs_[static_cast<std::size_t>(index)];
  group.free_bits.clear(page);
  --group.free;
  ++group.used;
  ++slab.used;
  group.peak = std::max(group.peak, group.used);
  if (slab.used + withheld(id, index) == group.per_slab) unlink(group, static_cast<std::int32_t>(index));
  group.refs.add(page, owner);
  return page;
}

PageId PagePool::choose(GroupId id, PageId after) {
  Group& group = groups_[id.value];
  const PageId next{after.value + 1};
  if (after != kPaddingPage && next.value < group.per_slab * config_.slabs && group.free_bits.test(next))
    return next;
  if (group.partial == kNoSlab) own_slab(id, pick_free_slab(id, after));
  if (after != kPaddingPage && group.free_bits.test(next)) return next;
  return group.free_bits.find(group.partial);
}

std::int64_t PagePool::pick_free_slab(GroupId id, PageId after) const {
  QUIRE_CHECK(free_slabs_ > 0, "a promise of group {} cannot be kept", group(id).name);
  // The slab behind the run's last page goes on with consecutive ids.
  const auto behind = static_cast<std::size_t>(after.value / groups_[id.value].per_slab + 1);
  if (after != kPaddingPage && behind < slabs_.size() && slabs_[behind].group < 0) {
    return static_cast<std::int64_t>(behind);
  }
  std::int64_t slab = lowest_free_slab_;
  while (slabs_[static_cast<std::size_t>(slab)].group >= 0) ++slab;
  return slab;
}

void PagePool::own_slab(GroupId id, std::int64_t index) {
  Group& group = groups_[id.value];
  slabs_[static_cast<std::size_t>(index)].group = static_cast<std::int32_t>(id.value);
  --free_slabs_;
  ++group.owned_slabs;
  while (lowest_free_slab_ < config_.slabs &&
         slabs_[static_cast<std::size_t>(lowest_free_slab_)].group >= 0) {
    ++lowest_free_slab_;
  }
  group.free_bits.set_slab(index);
  if (index == 0) group.free_bits.clear(kPaddingPage);
  const std::int64_t pages = group.per_slab - withheld(id, index);
  group.free += pages;
  if (pages > 0) link(group, static_cast<std::int32_t>(index));
}

void PagePool::free_slab(GroupId id, std::int64_t index) {
  Group& group = groups_[id.value];
  unlink(group, static_cast<std::int32_t>(index));
  group.free_bits.clear_slab(index);
  group.free -= group.per_slab;
  --group.owned_slabs;
  slabs_[static_cast<std::size_t>(index)].group = -1;
  ++free_slabs_;
  lowest_free_slab_ = std::min(lowest_free_slab_, index);
}

void PagePool::link(Group& group, std::int32_t index) {
  Slab& slab = slabs_[static_cast<std::size_t>(index)];
  if (slab.listed) return;
  slab = Slab{slab.group, slab.used, kNoSlab, group.partial, true};
  if (slab.next != kNoSlab) slabs_[static_cast<std::size_t>(slab.next)].previous = index;
  group.partial = index;
}

void PagePool::unlink(Group& group, std::int32_t index) {
  Slab& slab = slabs_[static_cast<std::size_t>(index)];
  if (!slab.listed) return;
  if (slab.previous != kNoSlab) slabs_[static_cast<std::size_t>(slab.previous)].next = slab.next;
  if (slab.next != kNoSlab) slabs_[static_cast<std::size_t>(slab.next)].previous = slab.previous;
  if (group.partial == index) group.partial = slab.next;
  slab = Slab{slab.group, slab.used};
}

std::int64_t PagePool::withheld(GroupId group, std::int64_t slab) const {
  return slab == 0 && group == config_.plan.head ? 1 : 0;
}

// ---- what others may know --------------------------------------------------------------------------------

std::int32_t PagePool::references(GroupId group, PageId page) const {
  QUIRE_CHECK(page.value < groups_[group.value].per_slab * config_.slabs, "group {} has no page {}",
              group.value, page.value);
  return groups_[group.value].refs.count(page);
}

std::int32_t PagePool::sharers(GroupId group, PageId page) const {
  std::int32_t count = 0;
  groups_[group.value].refs.each(page,
                                 [&](Owner owner) { count += owner.kind == OwnerKind::transfer ? 0 : 1; });
  return count;
}

bool PagePool::holds(GroupId group, PageId page, Owner owner) const {
  return groups_[group.value].refs.holds(page, owner);
}

bool PagePool::idle() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.used == 0 && group.promised == 0; });
}

std::span<const GroupPage> PagePool::take_freed() {
  freed_before_.clear();
  std::swap(freed_, freed_before_);
  return freed_before_;
}

std::vector<Holding> PagePool::holdings() const {
  std::vector<Holding> holdings;
  const auto line = [&holdings](Owner owner) -> Holding& {
    const auto at = std::lower_bound(holdings.begin(), holdings.end(), owner,
                                     [](const Holding& holding, Owner key) { return holding.owner < key; });
    if (at != holdings.end() && at->owner == owner) return *at;
    return *holdings.insert(at, Holding{owner, {}, {}});
  };
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::int64_t page = 0; page < groups_[g].per_slab * config_.slabs; ++page) {
      groups_[g].refs.each(PageId{static_cast<std::uint32_t>(page)},
                           [&](Owner owner) { ++line(owner).pages[group_id(g)]; });
    }
  }
  for (const Promise& promise : promises_) {
    if (!promise.live || promise.left == PageCounts{}) continue;
    Holding& holding = line(promise.owner);
    for (std::size_t g = 0; g < groups_.size(); ++g) holding.promised.of[g] += promise.left.of[g];
  }
  return holdings;
}

std::string PagePool::describe(GroupId group, PageId page) const {
  std::string owners;
  groups_[group.value].refs.each(
      page, [&](Owner owner) { owners += (owners.empty() ? "" : ", ") + to_string(owner); });
  return fmt::format("page {} of {} (held by {})", page.value, config_.groups[group.value].name,
                     owners.empty() ? "nobody" : owners);
}

}  // namespace quire::kv
