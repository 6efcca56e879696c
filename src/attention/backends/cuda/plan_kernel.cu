// The plan of a step: units, their key tiles laid end to end, and how many tiles make a part. One block, from
// the lengths on the device, into fixed addresses; shared by all layers.
#include "attention/backends/cuda/launch.h"
#include "attention/backends/cuda/rows.cuh"
#include "platform/cuda/stream.h"

namespace quire::attention::cuda {
namespace {

constexpr int kThreads = 1024;

// Exclusive prefix sum over the block; `total` gets the sum of all. Every thread calls it.
__device__ std::int32_t exclusive_sum(std::int32_t value, std::int32_t& total) {
  __shared__ std::int32_t warp_sums[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::int32_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t below = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    std::int32_t w = warp_sums[lane];
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t below = __shfl_up_sync(0xffffffffu, w, step);
      if (lane >= step) w += below;
    }
    warp_sums[lane] = w;
  }
  __syncthreads();
  const std::int32_t before = warp == 0 ? 0 : warp_sums[warp - 1];
  total = warp_sums[kThreads / 32 - 1];
  __syncthreads();
  return before + sum - value;
}

// Sequence i, or group i of a cascade's prefix, as a unit without its rows.
__device__ Unit source_of(const PlanParams& p, std::int32_t i) {
  Unit u;
  if (p.groups.count == 0) {
    u.q_begin = p.step.q_offsets[i];
    u.q_len = p.step.q_offsets[i + 1] - u.q_begin;
    u.table_row = i;
    u.kv_len = p.step.kv_lens[i];
    u.clamp_end = u.kv_len;
    if (p.step.part_begin != nullptr) {
      u.clamp_begin = max(0, p.step.part_begin[i]);
      u.clamp_end = min(u.kv_len, p.step.part_end[i]);
    }
    return u;
  }
  const std::int32_t begin = p.groups.begin[i];
  const std::int32_t end = p.groups.end[i];
  u.q_begin = p.step.q_offsets[begin];
  u.q_len = p.step.q_offsets[end] - u.q_begin;
  u.table_row = begin;
  u.prefix = 1;
  u.key_end = u.full_end = u.kv_len = u.clamp_end = p.groups.shared[i];
  return u;
}

// A prefix is computed apart only if every row of its sequences sees all of it; else the group is dropped
// here and the sequences compute their keys themselves.
__device__ void settle_groups(const PlanParams& p) {
  __shared__ std::int32_t usable;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < p.step.batch; i += kThreads)
    p.suffix_begin[i] = 0;
  for (std::int32_t g = 0; g < p.groups.count; ++g) {
    if (threadIdx.x == 0) usable = 1;
    __syncthreads();
    for (std::int32_t i = p.groups.begin[g] + static_cast<std::int32_t>(threadIdx.x); i < p.groups.end[g];
         i += kThreads) {
      const std::int32_t q_len = p.step.q_offsets[i + 1] - p.step.q_offsets[i];
      if (q_len > 0 && p.step.kv_lens[i] - q_len + 1 < p.groups.shared[g]) usable = 0;
    }
    __syncthreads();
    const std::int32_t shared = usable != 0 ? p.groups.shared[g] : 0;
    for (std::int32_t i = p.groups.begin[g] + static_cast<std::int32_t>(threadIdx.x); i < p.groups.end[g];
         i += kThreads)
      p.suffix_begin[i] = shared;
    __syncthreads();
  }
}

// The unit that has place `at` of the line of one head.
__device__ std::int32_t unit_at(const Plan& plan, std::int32_t units, std::int32_t at) {
  std::int32_t low = 0, high = units;
  while (high - low > 1) {
    const std::int32_t middle = (low + high) / 2;
    (plan.starts[middle] <= at ? low : high) = middle;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PlanParams p) {
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t sources = p.groups.count == 0 ? p.step.batch : p.groups.count;
  if (p.groups.count != 0) settle_groups(p);
  std::int32_t units = 0;
  for (std::int32_t base = 0; base < sources; base += kThreads) {
    std::int32_t tiles = 0;
    if (base + thread < sources) {
      const Unit u = source_of(p, base + thread);
      const bool dropped = u.prefix != 0 && p.suffix_begin[u.table_row] == 0;
      if (!dropped) tiles = (u.q_len * p.ratio + p.tile_rows - 1) / p.tile_rows;
    }
    std::int32_t total = 0;
    const std::int32_t before = exclusive_sum(tiles, total);
    if (base + thread < sources) p.plan.sequence_units[base + thread] = units + before;
    units += total;
  }
  if (thread == 0) p.plan.sequence_units[sources] = units;
  __syncthreads();

  std::int32_t line = 0;
  for (std::int32_t base = 0; base < units; base += kThreads) {
    const std::int32_t index = base + thread;
    std::int32_t tiles = 0;
    if (index < units) {
      std::int32_t low = 0, high = sources;  // the last source whose first unit is at most `index`
      while (high - low > 1) {
        const std::int32_t middle = (low + high) / 2;
        (p.plan.sequence_units[middle] <= index ? low : high) = middle;
      }
      Unit u = source_of(p, low);
      u.first_row = (index - p.plan.sequence_units[low]) * p.tile_rows;
      if (u.prefix == 0) {
        const std::int32_t last_row = min(u.first_row + p.tile_rows, u.q_len * p.ratio) - 1;
        const std::int32_t first = u.first_row / p.ratio;
        const std::int32_t last = last_row / p.ratio;
        const RowKeys keys = union_keys(p.step, u, first, last);
        u.key_begin = keys.begin;
        u.key_end = keys.end;
        if (keys.begin >= keys.end) u.key_begin = u.key_end = 0;
        u.full_begin = row_keys(p.step, u, last).begin;
        u.full_end = row_keys(p.step, u, first).end;
        if (may_have_holes(p.step)) u.full_begin = 0x7fffffff;
      }
      p.plan.units[index] = u;
      tiles = tiles_of(u) + p.unit_cost;
    }
    std::int32_t total = 0;
    const std::int32_t before = exclusive_sum(tiles, total);
    if (index < units) p.plan.starts[index] = line + before;
    line += total;
  }
  const std::int64_t all = static_cast<std::int64_t>(line) * p.kv_heads;
  const std::int64_t part = places_of_part(all, p.plan.parts, p.least_tiles);
  if (thread == 0) {
    p.plan.starts[units] = line;
    *p.plan.header = {units, line, static_cast<std::int32_t>(part), p.unit_cost};
  }
  __syncthreads();  // starts are read by all
  for (std::int32_t i = thread; i < p.plan.parts; i += kThreads) {
    PartStart start;
    const std::int64_t at = i * part;
    if (at < all) {
      start.head = static_cast<std::int32_t>(at / line);
      const std::int32_t place = static_cast<std::int32_t>(at % line);
      start.unit = unit_at(p.plan, units, place);
      start.skip = place - p.plan.starts[start.unit];
      start.places = static_cast<std::int32_t>(min(part, all - at));
    }
    p.plan.part_starts[i] = start;
  }
  for (std::int32_t i = thread; i < units * p.kv_heads; i += kThreads) p.plan.arrivals[i] = 0;
}

}  // namespace

void launch_plan(const PlanParams& params, platform::Stream& stream) {
  plan_kernel<<<1, kThreads, 0, platform::cuda::native(stream)>>>(params);
  QUIRE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace quire::attention::cuda
