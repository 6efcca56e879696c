// The end of a piece: its rows go to out, or to partial sums that the block with the unit's last piece joins.
// Shared by all attention kernels of the row.
#pragma once

#include "attention/backends/cuda/tile.cuh"

namespace quire::attention::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// A row's softmax so far: the largest score in base-2 units (-inf: no key) and the sum of 2^(score -
// largest).
using RowStat = float2;

// Where the pieces of a unit and head lie in the line of key tiles.
__device__ __forceinline__ Cut cut_of(const RunParams& p, std::int32_t index, std::int32_t head,
                                      std::int32_t tiles) {
  const PlanHeader header = *p.plan.header;
  const std::int64_t first = static_cast<std::int64_t>(head) * header.head_tiles + p.plan.starts[index];
  return cut_at(first, tiles, header.part_tiles);
}

__device__ __forceinline__ RowStat* stat_at(const RunParams& p, std::int64_t row) {
  return reinterpret_cast<RowStat*>(p.plan.stats) + row;
}

struct OutRow {
  std::int64_t row;   // of q and out
  std::int32_t head;  // of q
};
__device__ __forceinline__ OutRow out_row(const RunParams& p, const Piece& piece, std::int32_t r) {
  const std::int32_t packed = piece.unit.first_row + r;
  return {piece.unit.q_begin + packed / p.ratio, piece.head * p.ratio + packed % p.ratio};
}

template <class T>
__device__ __forceinline__ void store_pair(const RunParams& p, const OutRow& at, std::int32_t dim, float x,
                                           float y) {
  const std::int64_t element = at.row * p.out_row_stride + at.head * p.out_head_stride + dim;
  if (p.out_type == OutType::f32) {
    float* out = reinterpret_cast<float*>(p.out) + element;
    *reinterpret_cast<float2*>(out) = {x, y};
  } else {
    *reinterpret_cast<std::uint32_t*>(p.out + element * 2) = T::pack(x, y);
  }
}

// V's scale, where one serves the whole head.
__device__ __forceinline__ float head_scale(const RunParams& p, const char* scales, std::int32_t head) {
  const auto* values = reinterpret_cast<const float*>(scales);
  if (p.scale_kind == 1) return values[0];
  if (p.scale_kind == 2) return values[head];
  return 1.0f;
}

// The factor that makes a row's sums its result; writes the row's lse. A total that is no number stays one:
// whoever reads the logits must see it.
__device__ __forceinline__ float finish_stat(const RunParams& p, const Piece& piece, std::int32_t r,
                                             RowStat stat, float v_scale) {
  const OutRow at = out_row(p, piece, r);
  if (p.lse != nullptr)
    p.lse[at.row * p.q_heads + at.head] = stat.y != 0 ? (stat.x + log2f(stat.y)) * kLn2 : -INFINITY;
  if (stat.y == 0) return 0;
  const float sink = p.sink != nullptr ? exp2f(p.sink[at.head] * kLog2e - stat.x) : 0.0f;
  return v_scale / (stat.y + sink);
}

// How the threads of a block wait for all others where they come by the same way. Those that come by several
// must not meet at __syncthreads().
struct SameWay {
  __device__ __forceinline__ void operator()() const { __syncthreads(); }
};

// Joins the pieces of a unit in key order. Called by the block that finished the last of them; `stats` and
// `factors` are [tile_rows] in shared memory.
template <class T, class Meet>
__device__ __forceinline__ void join_pieces(const RunParams& p, const Piece& piece, const Cut& cut,
                                            std::int32_t tile_rows, std::int32_t v_pad, RowStat* stats,
                                            float* factors, Meet meet) {
  const float v_scale = head_scale(p, p.v_scale, piece.head);
  const std::int32_t thread = thread_again();
  const std::int32_t threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t r = thread; r < piece.rows; r += threads) {
    RowStat all{-INFINITY, 0};
#pragma unroll 8
    for (std::int64_t part = cut.first_part; part <= cut.last_part; ++part)
      all.x = fmaxf(all.x, __ldcg(stat_at(p, slot_of(cut, part) * tile_rows + r)).x);
#pragma unroll 8
    for (std::int64_t part = cut.first_part; part <= cut.last_part; ++part) {
      const RowStat one = __ldcg(stat_at(p, slot_of(cut, part) * tile_rows + r));
      if (one.y != 0) all.y += one.y * exp2f(one.x - all.x);
    }
    stats[r] = all;
    factors[r] = finish_stat(p, piece, r, all, v_scale);
  }
  meet();
  // Reading is all that this does, so every thread keeps several loads in flight and none of them is
  // conditional.
  constexpr int kBatch = 2;
  const std::int32_t groups = p.v_dim / 4;
  const std::int32_t elements = piece.rows * groups;
  for (std::int32_t first = thread; first < elements; first += kBatch * threads) {
    float4 sum[kBatch] = {};
    std::int32_t row[kBatch], dim[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const std::int32_t i = min(first + k * threads, elements - 1);
      row[k] = i / groups;
      dim[k] = i % groups * 4;
    }
#pragma unroll 4
    for (std::int64_t part = cut.first_part; part <= cut.last_part; ++part) {
      const std::int64_t base = slot_of(cut, part) * tile_rows;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const RowStat one = __ldcg(stat_at(p, base + row[k]));
        const float4 x =
            __ldcg(reinterpret_cast<const float4*>(p.plan.sums + (base + row[k]) * v_pad + dim[k]));
        const float weight = one.y != 0 ? exp2_fast(one.x - stats[row[k]].x) : 0.0f;
        sum[k].x += weight * x.x;
        sum[k].y += weight * x.y;
        sum[k].z += weight * x.z;
        sum[k].w += weight * x.w;
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k * threads >= elements) continue;
      const float factor = factors[row[k]];
      const OutRow at = out_row(p, piece, row[k]);
      store_pair<T>(p, at, dim[k], factor != 0 ? sum[k].x * factor : 0.0f,
                    factor != 0 ? sum[k].y * factor : 0.0f);
      store_pair<T>(p, at, dim[k] + 2, factor != 0 ? sum[k].z * factor : 0.0f,
                    factor != 0 ? sum[k].w * factor : 0.0f);
    }
  }
}

// `each(emit)` calls emit(row, dim, x, y) for the pairs of sums that the thread holds. stats [tile_rows] are
// in shared memory and complete; factors [tile_rows] and `last` are scratch there, until all threads of the
// block have waited for each other once more. `meet`: SameWay, or what else they wait for each other by.
template <class T, class Meet, class Each>
__device__ __forceinline__ void finish_piece(const RunParams& p, const Piece& piece, std::int64_t part,
                                             std::int32_t tile_rows, std::int32_t v_pad, RowStat* stats,
                                             float* factors, std::int32_t* last, Meet meet, Each&& each) {
  const Cut cut = cut_of(p, piece.index, piece.head, tiles_of(piece.unit));
  const std::int32_t thread = thread_again();
  const std::int32_t threads = static_cast<std::int32_t>(blockDim.x);
  if (cut.first_part == cut.last_part) {
    const float v_scale = head_scale(p, p.v_scale, piece.head);
    for (std::int32_t r = thread; r < piece.rows; r += threads)
      factors[r] = finish_stat(p, piece, r, stats[r], v_scale);
    meet();
    each([&](std::int32_t r, std::int32_t dim, float x, float y) {
      if (r >= piece.rows || dim >= p.v_dim) return;
      const float factor = factors[r];
      store_pair<T>(p, out_row(p, piece, r), dim, factor != 0 ? x * factor : 0.0f,
                    factor != 0 ? y * factor : 0.0f);
    });
    return;
  }
  const std::int64_t base = slot_of(cut, part) * tile_rows;
  for (std::int32_t r = thread; r < piece.rows; r += threads) *stat_at(p, base + r) = stats[r];
  each([&](std::int32_t r, std::int32_t dim, float x, float y) {
    if (r < piece.rows && dim < p.v_dim)
      *reinterpret_cast<float2*>(p.plan.sums + (base + r) * v_pad + dim) = {x, y};
  });
  if (p.role == Role::prefix) return;  // the join of the cascade takes them from there
  __threadfence();
  meet();
  if (thread == 0) {
    std::int32_t* arrivals =
        p.plan.arrivals + static_cast<std::int64_t>(piece.index) * p.kv_heads + piece.head;
    const std::int32_t before = atomicAdd(arrivals, 1);
    *last = before == static_cast<std::int32_t>(cut.last_part - cut.first_part);
    if (*last != 0) *arrivals = 0;  // for the next layer
  }
  meet();
  if (*last != 0) {
    __threadfence();
    join_pieces<T>(p, piece, cut, tile_rows, v_pad, stats, factors, meet);
  }
}

// Zeros for the rows of q that belong to no sequence, dealt over the blocks.
__device__ inline void clear_idle_rows(const RunParams& p) {
  if (!p.clear_idle) return;
  const std::int32_t live_begin = p.step.q_offsets[0];
  const std::int32_t live_end = p.step.q_offsets[p.step.batch];
  const std::int32_t idle = live_begin + (p.step.total_q - live_end);
  const std::int32_t pairs = p.q_heads * p.v_dim / 2;
  for (std::int32_t i = static_cast<std::int32_t>(blockIdx.x); i < idle;
       i += static_cast<std::int32_t>(gridDim.x)) {
    const std::int64_t row = i < live_begin ? i : live_end + (i - live_begin);
    for (std::int32_t at = static_cast<std::int32_t>(threadIdx.x); at < pairs;
         at += static_cast<std::int32_t>(blockDim.x)) {
      const std::int32_t head = at / (p.v_dim / 2);
      store_pair<Bf16>(p, {row, head}, at % (p.v_dim / 2) * 2, 0, 0);
    }
    for (std::int32_t h = static_cast<std::int32_t>(threadIdx.x); p.lse != nullptr && h < p.q_heads;
         h += static_cast<std::int32_t>(blockDim.x))
      p.lse[row * p.q_heads + h] = -INFINITY;
  }
}

// What the walk's next unit gives: a piece of no tiles where the part begins after the unit's last one.
__device__ __forceinline__ void take_piece(const RunParams& p, std::int32_t tile_rows, Piece& piece) {
  Walk& next = piece.next;
  const std::int32_t all = tiles_of(piece.unit);
  piece.head = next.head;
  piece.index = next.unit;
  piece.first_tile = piece.unit.key_begin / kTileKeys + next.skip;
  piece.tiles = min(all - next.skip, next.places);
  piece.rows = min(tile_rows, piece.unit.q_len * p.ratio - piece.unit.first_row);
  piece.holes = piece.unit.prefix == 0 && may_have_holes(p.step) ? 1 : 0;
  const std::int64_t token = p.step.kv_offsets != nullptr ? p.step.kv_offsets[piece.unit.table_row] : 0;
  piece.k = p.k + next.head * p.k_stride.head + token * p.k_stride.token;
  piece.v = p.v + next.head * p.v_stride.head + token * p.v_stride.token;
  piece.scale = next.head * p.scale_stride.head + token * p.scale_stride.token;
  const PlanHeader header = *p.plan.header;
  next.places -= all + header.unit_cost - next.skip;
  next.skip = 0;
  if (++next.unit == header.units) {
    next.unit = 0;
    ++next.head;
  }
}

// Walks the pieces of part `part`: each is described in `piece`, in shared memory, and then run(). Nothing of
// the walk stays in registers meanwhile.
template <class F>
__device__ __forceinline__ void for_each_piece(const RunParams& p, std::int64_t part, std::int32_t tile_rows,
                                               Piece& piece, F&& run) {
  if (threadIdx.x == 0) {
    const PartStart start = p.plan.part_starts[part];
    piece.next = {start.unit, start.head, start.skip, start.places};
  }
  __syncthreads();
  while (piece.next.places > 0) {
    constexpr std::int32_t kWords = sizeof(Unit) / 4;
    if (threadIdx.x < kWords)
      reinterpret_cast<std::int32_t*>(&piece.unit)[threadIdx.x] =
          reinterpret_cast<const std::int32_t*>(p.plan.units + piece.next.unit)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) take_piece(p, tile_rows, piece);
    __syncthreads();
    if (piece.tiles > 0) run();
    __syncthreads();
  }
}

// The whole of a kernel: an Attend computes this block's part, piece by piece. What Roles wait for: step.h.
template <class C, class Attend>
__device__ __forceinline__ void attend_part(const RunParams& p) {
  extern __shared__ __align__(128) char shared[];
  if (p.role == Role::prefix) let_next_start();
  clear_idle_rows(p);
  Piece& piece = *reinterpret_cast<Piece*>(shared + C::kPieceAt);
  for_each_piece(p, blockIdx.x, C::kTileRows, piece, [&] { Attend(p, shared).run_piece(piece, blockIdx.x); });
  // One block is enough, and the last to begin: others would keep multiprocessors from those yet to come.
  if (p.role == Role::suffix && blockIdx.x == gridDim.x - 1) wait_for_earlier();
}

}  // namespace quire::attention::cuda
