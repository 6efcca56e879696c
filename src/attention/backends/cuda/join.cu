// Parts of one softmax into the whole: what attention::merge and the cascade launch.
#include <algorithm>

#include "attention/backends/cuda/backend.h"
#include "attention/backends/cuda/finish.cuh"
#include "attention/backends/cuda/launch.h"
#include "platform/cuda/stream.h"

namespace quire::attention::cuda {
namespace {

constexpr int kThreads = 256;

// One warp per row and head. Weights are relative to the largest lse, so nothing overflows; every element is
// read before it is written, by the same thread, so `out` may be part 0's.
__global__ void __launch_bounds__(kThreads) join_parts(const __grid_constant__ MergeArgs p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (warp >= p.rows * p.heads) return;
  const std::int64_t row = warp / p.heads;
  const std::int32_t head = static_cast<std::int32_t>(warp % p.heads);
  float weights[kMaxMergeParts];
  float largest = -INFINITY;
  for (int i = 0; i < p.part_count; ++i) {
    const float lse = p.parts[i].lse[warp];
    if (lse > largest || isnan(lse)) largest = lse;  // a NaN stays, and makes every weight one
  }
  const bool empty = largest == -INFINITY;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kMaxMergeParts; ++i) {
    weights[i] = i < p.part_count && !empty ? expf(p.parts[i].lse[warp] - largest) : 0.0f;
    total += weights[i];
  }
  const float sink = p.sink != nullptr && !empty ? expf(p.sink[head] - largest) : 0.0f;
  const float factor = empty ? 0.0f : 1.0f / (total + sink);
  float* out = p.out + row * p.out_row_stride + head * std::int64_t{p.dim};
  for (std::int32_t d = lane; d < p.dim; d += 32) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxMergeParts; ++i)
      if (i < p.part_count && weights[i] != 0) sum += weights[i] * factor * p.parts[i].out[warp * p.dim + d];
    out[d] = sum;
  }
  __syncwarp();
  if (lane == 0 && p.lse != nullptr) p.lse[warp] = empty ? -INFINITY : largest + logf(total);
}

// Where a cascade's prefix has the results of one row and head.
struct Found {
  Cut cut;               // the parts with pieces of its unit: of a row in no group, none
  std::int32_t row = 0;  // in the unit
};

// Groups are few and a unit has many rows, so the units are looked through, one a lane. Whole warps call it.
__device__ Found find_prefix(const CascadeJoin& c, std::int64_t row, std::int32_t head, int lane) {
  const RunParams& p = c.run;
  const std::int32_t units = p.plan.header->units;
  for (std::int32_t base = 0; base < units; base += 32) {
    std::int64_t in_unit = -1;
    if (base + lane < units) {
      const Unit& unit = p.plan.units[base + lane];
      const std::int64_t query = row - unit.q_begin;
      if (query >= 0 && query < unit.q_len) in_unit = query * p.ratio + head % p.ratio - unit.first_row;
    }
    const unsigned mine = __ballot_sync(0xffffffffu, in_unit >= 0 && in_unit < c.tile_rows);
    if (mine == 0) continue;
    const int at = __ffs(static_cast<int>(mine)) - 1;
    const std::int32_t index = base + at;
    return {cut_of(p, index, head / p.ratio, tiles_of(p.plan.units[index])),
            static_cast<std::int32_t>(__shfl_sync(0xffffffffu, in_unit, at))};
  }
  return {};
}

__device__ __forceinline__ void add_weighted(float4& sum, float weight, const float* at) {
  const float4 x = *reinterpret_cast<const float4*>(at);
  sum.x += weight * x.x;
  sum.y += weight * x.y;
  sum.z += weight * x.z;
  sum.w += weight * x.w;
}

// One warp per row and head: pieces of the prefix in key order, then the suffix. Each is some sums and, in
// base-2 units, how large: of pieces (largest score, total), of what is normalised already (lse, 1).
template <class T>
__global__ void __launch_bounds__(kThreads) join_cascade(const __grid_constant__ CascadeJoin c) {
  const RunParams& p = c.run;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t pair = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (pair >= std::int64_t{p.step.total_q} * p.q_heads) return;
  const OutRow at{pair / p.q_heads, static_cast<std::int32_t>(pair % p.q_heads)};
  const float suffix = c.lses[1][pair] * kLog2e;
  Found found = find_prefix(c, at.row, at.head, lane);
  const bool whole = found.cut.first_part == found.cut.last_part;
  const float prefix = whole ? c.lses[0][pair] * kLog2e : -INFINITY;
  if (whole) found.cut = {};

  float largest = -INFINITY;
  const auto see = [&](float size) {
    if (size > largest || isnan(size)) largest = size;  // a NaN stays, and makes every weight one
  };
  see(prefix);
  see(suffix);
#pragma unroll 8
  for (std::int64_t part = found.cut.first_part; part <= found.cut.last_part; ++part) {
    const RowStat one = *stat_at(p, slot_of(found.cut, part) * c.tile_rows + found.row);
    see(isnan(one.y) ? one.y : one.x);
  }
  const bool empty = largest == -INFINITY;
  const float weights[2] = {empty ? 0.0f : exp2_fast(prefix - largest),
                            empty ? 0.0f : exp2_fast(suffix - largest)};
  float total = weights[0] + weights[1];
#pragma unroll 8
  for (std::int64_t part = found.cut.first_part; part <= found.cut.last_part; ++part) {
    const RowStat one = *stat_at(p, slot_of(found.cut, part) * c.tile_rows + found.row);
    if (one.y != 0) total += one.y * exp2_fast(one.x - largest);
  }
  const float sink = p.sink != nullptr && !empty ? exp2_fast(p.sink[at.head] * kLog2e - largest) : 0.0f;
  const float factor = empty ? 0.0f : 1.0f / (total + sink);
  const float v_scale = head_scale(p, p.v_scale, at.head / p.ratio);
  for (std::int32_t dim = lane * 4; dim < p.v_dim; dim += 32 * 4) {
    float4 sum{};
#pragma unroll 8
    for (std::int64_t part = found.cut.first_part; part <= found.cut.last_part; ++part) {
      const std::int64_t row = slot_of(found.cut, part) * c.tile_rows + found.row;
      const RowStat one = *stat_at(p, row);
      const float weight = one.y != 0 ? exp2_fast(one.x - largest) * v_scale : 0.0f;
      add_weighted(sum, weight, p.plan.sums + row * c.v_pad + dim);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (weights[i] != 0) add_weighted(sum, weights[i], c.sums[i] + pair * p.v_dim + dim);
    store_pair<T>(p, at, dim, sum.x * factor, sum.y * factor);
    store_pair<T>(p, at, dim + 2, sum.z * factor, sum.w * factor);
  }
  if (lane == 0 && p.lse != nullptr) p.lse[pair] = empty ? -INFINITY : (largest + log2f(total)) * kLn2;
}

// For a warp each.
unsigned blocks_for(std::int64_t warps) {
  return static_cast<unsigned>(std::max<std::int64_t>(1, (warps * 32 + kThreads - 1) / kThreads));
}

}  // namespace

void launch_cascade_join(const CascadeJoin& params, platform::Stream& stream) {
  const cudaStream_t native = platform::cuda::native(stream);
  const unsigned blocks = blocks_for(std::int64_t{params.run.step.total_q} * params.run.q_heads);
  if (params.type == DType::bf16)
    join_cascade<Bf16><<<blocks, kThreads, 0, native>>>(params);
  else
    join_cascade<F16><<<blocks, kThreads, 0, native>>>(params);
  QUIRE_CUDA_CHECK(cudaGetLastError());
}

void merge_parts(const MergeArgs& args, platform::Stream& stream) {
  join_parts<<<blocks_for(args.rows * args.heads), kThreads, 0, platform::cuda::native(stream)>>>(args);
  QUIRE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace quire::attention::cuda
