#include "kv/slabs.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace quire::kv {
namespace {

constexpr std::int64_t kMaxStride = std::int64_t{1} << 46;
constexpr std::int64_t kMaxSlabBytes = std::int64_t{1} << 52;
constexpr std::int64_t kPagesPerSlab = 32;   // of the largest page, where the arena allows
constexpr std::int64_t kSlabsPerGroup = 64;  // so many at least, before slabs get larger
constexpr std::int64_t kFirstQuantum = 64;   // padded strides stay aligned to cache lines

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Least common multiple, or 0 where it leaves every sane size.
std::int64_t common_multiple(const std::vector<std::int64_t>& strides) {
  std::int64_t result = 1;
  for (const std::int64_t stride : strides) {
    const std::int64_t factor = stride / std::gcd(result, stride);
    if (result > kMaxSlabBytes / factor) return 0;
    result *= factor;
  }
  return result;
}

struct Candidate {
  std::vector<std::int64_t> strides;
  std::int64_t multiple = 0;
  double loss = std::numeric_limits<double>::infinity();  // part of the arena
};

// All strides rounded up to `quantum` (1: as they are), and what that would lose.
Candidate candidate(std::span<const std::int64_t> strides, std::int64_t quantum, std::int64_t arena_bytes) {
  Candidate result;
  double padding = 0;
  for (const std::int64_t stride : strides) {
    result.strides.push_back(round_up(stride, quantum));
    padding =
        std::max(padding, static_cast<double>(result.strides.back() - stride) / static_cast<double>(stride));
  }
  result.multiple = common_multiple(result.strides);
  if (result.multiple == 0) return result;
  const double idle = strides.size() == 1 ? 0.0 : 0.5 * static_cast<double>(strides.size());
  result.loss = padding + idle * static_cast<double>(result.multiple) / static_cast<double>(arena_bytes);
  return result;
}

}  // namespace

std::int64_t SlabPlan::slabs_for(const PageCounts& counts) const {
  std::int64_t slabs = 0;
  for (int g = 0; g < groups(); ++g) {
    const GroupId group{static_cast<std::uint32_t>(g)};
    const std::int64_t pages = counts[group] + (group == head ? 1 : 0);
    const std::int64_t per_slab = pages_per_slab[group.value];
    slabs += (pages + per_slab - 1) / per_slab;
  }
  return slabs;
}

std::int64_t SlabPlan::least_slabs() const {
  PageCounts one;
  for (int g = 0; g < groups(); ++g) one.of[static_cast<std::size_t>(g)] = 1;
  return slabs_for(one);
}

std::int64_t SlabPlan::most_pages(GroupId group, std::int64_t slabs) const {
  const std::int64_t per_slab = pages_per_slab[group.value];
  return std::max<std::int64_t>(0, group == head ? slabs * per_slab - 1 : (slabs - 1) * per_slab);
}

Result<SlabPlan> plan_slabs(std::span<const std::int64_t> page_strides, std::int64_t arena_bytes) {
  if (page_strides.empty() || page_strides.size() > kMaxGroups) {
    return bad_input(fmt::format("{} KV groups: a model has 1 to {}", page_strides.size(), kMaxGroups));
  }
  for (const std::int64_t stride : page_strides) {
    if (stride < 1 || stride > kMaxStride) {
      return bad_input(
          fmt::format("a KV page of {} bytes: use a page size that gives 1 to {}", stride, kMaxStride));
    }
  }
  const std::int64_t arena = std::max<std::int64_t>(arena_bytes, 1);
  const std::int64_t largest = *std::max_element(page_strides.begin(), page_strides.end());
  Candidate best = candidate(page_strides, 1, arena);
  const auto consider = [&](std::int64_t quantum) {
    Candidate next = candidate(page_strides, quantum, arena);
    if (next.loss < best.loss) best = std::move(next);
  };
  if (page_strides.size() > 1) {
    for (std::int64_t quantum = kFirstQuantum; quantum < largest; quantum *= 2) consider(quantum);
    // With one of the strides as the quantum the others become its multiples: always a usable candidate.
    for (const std::int64_t stride : page_strides)
      consider(round_up(stride, std::min(stride, kFirstQuantum)));
  }
  QUIRE_CHECK(best.multiple > 0, "no common multiple of {} strides, largest {}", page_strides.size(),
              largest);
  SlabPlan plan;
  const auto head = std::max_element(best.strides.begin(), best.strides.end());
  plan.head = GroupId{static_cast<std::uint32_t>(head - best.strides.begin())};
  const auto groups = static_cast<std::int64_t>(page_strides.size());
  const std::int64_t wanted = std::min(kPagesPerSlab * *head, arena / (kSlabsPerGroup * groups));
  plan.slab_bytes = best.multiple * std::max<std::int64_t>(1, wanted / best.multiple);
  for (const std::int64_t stride : best.strides) plan.pages_per_slab.push_back(plan.slab_bytes / stride);
  plan.page_strides = std::move(best.strides);
  return plan;
}

}  // namespace quire::kv
