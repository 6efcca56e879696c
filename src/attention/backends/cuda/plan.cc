#include "attention/backends/cuda/plan.h"

#include <algorithm>

#include "base/carver.h"

namespace quire::attention::cuda {
namespace {

using Carver = quire::Carver<256>;

Plan carve_plan(Carver& carver, const Geometry& g, const Launch& launch, std::int64_t sources,
                std::int64_t total_q) {
  const Kernel& kernel = launch.kernel;
  const std::int64_t units = sources + total_q * g.ratio / kernel.tile_rows;
  const std::int64_t rows = std::int64_t{launch.parts} * 2 * kernel.tile_rows;
  Plan plan;
  plan.header = carver.take<PlanHeader>(1);
  plan.sequence_units = carver.take<std::int32_t>(sources + 1);
  plan.units = carver.take<Unit>(units);
  plan.starts = carver.take<std::int32_t>(units + 1);
  plan.part_starts = carver.take<PartStart>(launch.parts);
  plan.arrivals = carver.take<std::int32_t>(units * g.kv_heads);
  plan.stats = carver.take<float>(rows * 2);
  plan.sums = carver.take<float>(rows * kernel.v_pad);
  plan.unit_capacity = static_cast<std::int32_t>(units);
  plan.parts = launch.parts;
  return plan;
}

}  // namespace

const Launch& launch_for(const Geometry& g, std::int32_t max_q) {
  const std::int64_t rows = std::int64_t{max_q} * g.ratio;
  if (rows <= g.few.kernel.tile_rows) return g.few;
  return rows <= g.narrow.kernel.tile_rows ? g.narrow : g.wide;
}

Launch prefix_launch(const Launch& wide, std::int32_t cores) {
  Launch launch = wide;
  launch.parts = cores;
  launch.kernel.least_tiles = 4;
  launch.kernel.unit_cost = 0;
  return launch;
}

Layout make_layout(const Geometry& g, const Launch& launch, const Bounds& bounds, void* base) {
  Carver carver(base);
  Layout layout;
  layout.plan = carve_plan(carver, g, launch, bounds.batch, bounds.total_q);
  if (g.cascade) {
    layout.cascade.prefix = carve_plan(carver, g, g.prefix, kMostGroups, bounds.total_q);
    layout.cascade.suffix_begin = carver.take<std::int32_t>(bounds.batch);
    const std::int64_t rows = std::int64_t{bounds.total_q} * g.q_heads;
    for (float*& sums : layout.cascade.sums) sums = carver.take<float>(rows * g.v_dim);
    for (float*& lse : layout.cascade.lses) lse = carver.take<float>(rows);
  }
  layout.bytes = carver.used();
  return layout;
}

std::int64_t plan_bytes(const Geometry& g, const Limits& limits) {
  const Bounds bounds{limits.max_batch, limits.max_total_q};
  // A step of shorter queries than the longest may take another form.
  std::int64_t bytes = 0;
  for (const std::int32_t rows : {1, g.few.kernel.tile_rows, g.narrow.kernel.tile_rows}) {
    const std::int32_t max_q = std::clamp(rows / g.ratio, 1, std::max(1, limits.max_q));
    bytes = std::max(bytes, make_layout(g, launch_for(g, max_q), bounds, nullptr).bytes);
  }
  return std::max(bytes, make_layout(g, launch_for(g, limits.max_q), bounds, nullptr).bytes);
}

Groups groups_of(const Geometry& g, const StepShape& shape) {
  Groups groups;
  const bool plain = shape.tree_bits == nullptr && shape.part_begin == nullptr &&
                     (shape.mask == MaskKind::causal || shape.mask == MaskKind::full);
  if (!g.cascade || !plain) return groups;
  for (std::int32_t i = 0; i < shape.prefix_group_count && groups.count < kMostGroups; ++i) {
    const PrefixGroup& group = shape.prefix_groups[i];
    if (group.row_end - group.row_begin < 2 || group.shared_len < 1) continue;
    // Levels nest: of two groups that meet, the first is followed.
    bool meets = false;
    for (std::int32_t k = 0; k < groups.count; ++k)
      meets = meets || (group.row_begin < groups.end[k] && groups.begin[k] < group.row_end);
    if (meets) continue;
    groups.begin[groups.count] = group.row_begin;
    groups.end[groups.count] = group.row_end;
    groups.shared[groups.count] = group.shared_len;
    ++groups.count;
  }
  return groups;
}

bool is_aligned(const void* base, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(base) | static_cast<std::uintptr_t>(bytes)) % 16 == 0;
}

}  // namespace quire::attention::cuda
