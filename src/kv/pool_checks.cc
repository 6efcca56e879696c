// The conservation rules of PagePool that look at its own books (page_pool.h, audit.h).
#include <fmt/core.h>

#include "kv/page_pool.h"

namespace quire::kv {

std::vector<std::string> PagePool::check_counters() const {
  std::vector<std::string> violations;
  std::int64_t owned = 0;
  std::int64_t missing_slabs = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::string& name = config_.groups[g].name;
    owned += group.owned_slabs;
    const std::int64_t withheld_pages = g == config_.plan.head.value ? 1 : 0;
    if (group.free + group.used + withheld_pages != group.owned_slabs * group.per_slab) {
      violations.push_back(fmt::format("{}: {} free + {} used + {} withheld pages are not its {} slabs of {}",
                                       name, group.free, group.used, withheld_pages, group.owned_slabs,
                                       group.per_slab));
    }
    if (group.promised < 0) violations.push_back(fmt::format("{}: {} pages promised", name, group.promised));
    const std::int64_t missing = group.promised - group.free;
    if (missing > 0) missing_slabs += (missing + group.per_slab - 1) / group.per_slab;
  }
  if (owned + free_slabs_ != config_.slabs) {
    violations.push_back(
        fmt::format("{} owned + {} free slabs are not {}", owned, free_slabs_, config_.slabs));
  }
  if (missing_slabs > free_slabs_) {
    violations.push_back(fmt::format("promises need {} more slabs, {} are free", missing_slabs, free_slabs_));
  }
  return violations;
}

void PagePool::check_group(GroupId id, std::vector<std::string>& violations) const {
  const Group& group = groups_[id.value];
  const std::string& name = config_.groups[id.value].name;
  std::int64_t used = 0;
  std::int64_t owned = 0;
  for (std::int64_t s = 0; s < config_.slabs; ++s) {
    const Slab& slab = slabs_[static_cast<std::size_t>(s)];
    const bool ours = slab.group == static_cast<std::int32_t>(id.value);
    owned += ours ? 1 : 0;
    std::int64_t used_here = 0;
    for (std::int64_t p = s * group.per_slab; p < (s + 1) * group.per_slab; ++p) {
      const PageId page{static_cast<std::uint32_t>(p)};
      const bool referenced = group.refs.count(page) > 0;
      used_here += referenced ? 1 : 0;
      if (referenced && p == 0) violations.push_back(describe(id, page) + ": page 0 is nobody's");
      if (referenced && !ours) violations.push_back(describe(id, page) + ": its slab is not the group's");
      const bool should_be_free = ours && !referenced && p != 0;
      if (group.free_bits.test(page) != should_be_free) {
        violations.push_back(describe(id, page) +
                             (should_be_free ? ": lost, neither free nor held" : ": listed as free"));
      }
    }
    if (ours && used_here != slab.used) {
      violations.push_back(
          fmt::format("{}: slab {} counts {} pages, {} are held", name, s, slab.used, used_here));
    }
    if (ours && slab.listed != (used_here + withheld(id, s) < group.per_slab)) {
      violations.push_back(fmt::format("{}: slab {} is {} the list of slabs with free pages", name, s,
                                       slab.listed ? "wrongly in" : "missing from"));
    }
    used += used_here;
  }
  if (used != group.used || owned != group.owned_slabs) {
    violations.push_back(fmt::format("{}: counts {} pages in {} slabs, {} in {} are held", name, group.used,
                                     group.owned_slabs, used, owned));
  }
}

std::vector<std::string> PagePool::check_all() const {
  std::vector<std::string> violations = check_counters();
  PageCounts promised;
  for (const Promise& promise : promises_) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      promised.of[g] += promise.left.of[g];
      if (promise.left.of[g] < 0 || (!promise.live && promise.left.of[g] != 0)) {
        violations.push_back(fmt::format("{}: {} has a promise of {} pages", config_.groups[g].name,
                                         to_string(promise.owner), promise.left.of[g]));
      }
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (promised.of[g] != groups_[g].promised) {
      violations.push_back(fmt::format("{}: {} pages promised, the promises add up to {}",
                                       config_.groups[g].name, groups_[g].promised, promised.of[g]));
    }
    check_group(GroupId{static_cast<std::uint32_t>(g)}, violations);
  }
  return violations;
}

}  // namespace quire::kv
