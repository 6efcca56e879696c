// Flash attention (Dao 2022, 2023) for steps of few rows: 8 or 16 packed rows a unit. Such steps read the
// cache and hardly compute, so the products are turned over: keys (and then dims of V) are the 16 rows of
// mma.m16n8k16 and the packed rows of q its 8 columns, which wastes least and needs few registers. Each of
// four warps has its own 16 keys of a tile and its own running softmax, joined at the end of the piece.
// Features are run-time switches.
//
// An e4m3 cache is multiplied in f16, which holds every e4m3 value and which one instruction makes of two of
// them. Rows of q are scaled by powers of two into f16's range; weights and scales per token go into one
// exponent with a largest value of its own, so that no product of them leaves the range either.
#pragma once

#include <type_traits>

#include "attention/backends/cuda/stages.cuh"

namespace quire::attention::cuda {

template <class T_, bool kE4m3_, int kQk_, int kV_, int kRowBlocks_, int kStages_, int kBlocksPerSm_>
struct NarrowConfig : TileConfig<T_, kE4m3_, kQk_, kV_, 8 * kRowBlocks_, 128, kStages_> {
  using Base = TileConfig<T_, kE4m3_, kQk_, kV_, 8 * kRowBlocks_, 128, kStages_>;
  using Element = std::conditional_t<kE4m3_, F16, T_>;  // what the products multiply
  static constexpr int kRowBlocks = kRowBlocks_;        // of 8 rows
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = 4;
  static constexpr int kSumStride = kV_ + 4;  // of the warps' sums in shared memory
  static constexpr int kWarpStatsAt = Base::kTilesEnd;
  static constexpr int kSharedBytes = kWarpStatsAt + kWarps * Base::kTileRows * 8;
  static_assert(kTileKeys == 16 * kWarps);
  static_assert(kWarps * Base::kTileRows * kSumStride * 4 <= kStages_ * Base::kStageBytes);
};

template <class C>
struct NarrowAttend {
  using T = typename C::T;
  using Element = typename C::Element;
  static constexpr int kBlocks = C::kRowBlocks;

  const Stages<C> stages;
  const int thread = thread_again_known();
  const int lane = thread % 32;
  const int warp = thread / 32;

  // Of a row, in this thread: rows 8 * block + 2 * (lane % 4) + column. Values in base-2 units.
  struct State {
    float sums[C::kV / 16][kBlocks][4];
    float largest[kBlocks]
                 [2];         // what the totals are relative to, not more than kSlack below the largest score
    float total[kBlocks][2];  // this thread's share
    float largest_v[kBlocks][2];  // what the sums are relative to; with scales per token another value
  };
  // Scores and weights: elements 0, 1 are of key lane / 4, elements 2, 3 of the key 8 further on.
  using Scores = float[kBlocks][4];
  using Queries = std::uint32_t[C::kQk / 16][kBlocks][2];

  __device__ NarrowAttend(const RunParams& params, char* memory) : stages{params, memory} {}

  // The same, with what depends on the thread computed anew: see thread_again().
  __device__ __forceinline__ NarrowAttend again() const { return NarrowAttend(stages.p, stages.shared); }

  // K and V have scales per token.
  __device__ __forceinline__ bool per_token() const { return C::kE4m3 && stages.p.scale_kind == 3; }
  __device__ int row_of(int block, int column) const { return block * 8 + lane % 4 * 2 + column; }
  __device__ int slot_of(int half) const { return warp * 16 + half * 8 + lane / 4; }

  // What the scores of the rows are to be multiplied by. Lies where the end of the piece has its factors.
  __device__ float* row_factors() const { return reinterpret_cast<float*>(stages.shared + C::kFactorsAt); }

  // Rows of q as the products read them, and their factors.
  __device__ void take_queries(Queries& q, float factor) const {
    const std::uint32_t q_at = shared_address(stages.shared + C::kQAt);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int step = 0; step < C::kQk / 16; step += 2) {
        std::uint32_t r[4];
        load_matrix_4(r, q_at + chunk_at<C::kQk * 2>(b * 8 + lane % 8, 2 * step + lane / 8));
        q[step][b][0] = r[0], q[step][b][1] = r[1], q[step + 1][b][0] = r[2], q[step + 1][b][1] = r[3];
      }
      float of_row = factor;
      if constexpr (!std::is_same_v<T, Element>) of_row *= to_f16(q, b);
      if (warp == 0 && lane % 4 == 0) row_factors()[b * 8 + lane / 4] = of_row;
    }
  }

  // Row lane / 4 of a block from bf16 to f16 and into its range. Returns what its scores are to be multiplied
  // by.
  __device__ float to_f16(Queries& q, int b) const {
    float most = 0;
#pragma unroll
    for (int step = 0; step < C::kQk / 16; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = unpack_bf16(q[step][b][i]);
        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const int shift = f16_shift(most);
    const float scale = power_of_two(shift);
#pragma unroll
    for (int step = 0; step < C::kQk / 16; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = unpack_bf16(q[step][b][i]);
        q[step][b][i] = F16::pack(x.x * scale, x.y * scale);
      }
    return power_of_two(-shift);
  }

  // K Q^T of the warp's 16 keys. A single block of rows has two sums, so that no product waits for the one
  // before.
  __device__ __forceinline__ void scores_of(Scores& s, const Queries& q, std::uint32_t k_tile) const {
    constexpr int kSums = kBlocks == 1 ? 2 : 1;
    Scores sums[kSums] = {};
    const RowSteps<C::kKBytes> k_at(k_tile, warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < C::kKBytes / 32; ++step) {
      std::uint32_t k[4];
      load_matrix_4(k, k_at(step));
      if constexpr (C::kE4m3) {  // 32 dims
        const std::uint32_t low[4] = {low_e4m3_to_f16(k[0]), low_e4m3_to_f16(k[1]), high_e4m3_to_f16(k[0]),
                                      high_e4m3_to_f16(k[1])};
        const std::uint32_t high[4] = {low_e4m3_to_f16(k[2]), low_e4m3_to_f16(k[3]), high_e4m3_to_f16(k[2]),
                                       high_e4m3_to_f16(k[3])};
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          Element::mma(sums[0][b], low, q[2 * step][b][0], q[2 * step][b][1]);
          Element::mma(sums[kSums - 1][b], high, q[2 * step + 1][b][0], q[2 * step + 1][b][1]);
        }
      } else {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
          Element::mma(sums[step % kSums][b], k, q[step][b][0], q[step][b][1]);
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[b][e] = kSums == 1 ? sums[0][b][e] : sums[0][b][e] + sums[1][b][e];
  }

  // Scores to base-2 units.
  __device__ __forceinline__ void shape_scores(Scores& s, const float* k_scales) const {
    const float scales[2] = {per_token() ? k_scales[slot_of(0)] : 1.0f,
                             per_token() ? k_scales[slot_of(1)] : 1.0f};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[b][e] *= row_factors()[row_of(b, e % 2)] * scales[e / 2];
    if (stages.p.softcap > 0) [[unlikely]] {
      const float cap2 = stages.p.softcap * kLog2e;
      const float inverse = 1.0f / cap2;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[b][e] = capped(s[b][e], cap2, inverse);
    }
  }

  __device__ __forceinline__ void hide_scores(Scores& s, const Piece& piece, std::int32_t tile_key) const {
    const RowTable table = stages.rows();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const std::uint64_t word = seen_bits(stages.p, piece, table, row_of(b, column), tile_key);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (((word >> slot_of(half)) & 1) == 0) s[b][half * 2 + column] = -INFINITY;
      }
  }

  // Makes room for the scores of a tile: where one is far above `largest`, that becomes the largest score,
  // and shrink(block, column, factor) is called with what the weights so far are to be multiplied by.
  template <class F>
  __device__ __forceinline__ void settle(const Scores& s, float (&largest)[kBlocks][2], F&& shrink) const {
    bool grows = false;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column)
        grows = grows || fmaxf(s[b][column], s[b][2 + column]) > largest[b][column] + kSlack;
    if (!__any_sync(0xffffffffu, grows)) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float top = fmaxf(s[b][column], s[b][2 + column]);
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        const float before = largest[b][column];
        largest[b][column] = fmaxf(top, before);
        shrink(b, column, exp2_fast(before - largest[b][column]));
      }
  }

  // Online softmax: scores become weights.
  __device__ __forceinline__ void soften(Scores& s, State& state, const float* v_scales) const {
    const auto shrink_sums = [&](int b, int column, float by) {
#pragma unroll
      for (int d = 0; d < C::kV / 16; ++d) {
        state.sums[d][b][column] *= by;
        state.sums[d][b][2 + column] *= by;
      }
    };
    const bool apart = per_token();
    settle(s, state.largest, [&](int b, int column, float by) {
      state.total[b][column] *= by;
      if (!apart) shrink_sums(b, column, by);
    });
    Scores scaled;  // with the scale of V
    if (apart) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = __log2f(v_scales[slot_of(half)]);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int column = 0; column < 2; ++column)
            scaled[b][half * 2 + column] = s[b][half * 2 + column] + scale;
      }
      settle(scaled, state.largest_v, shrink_sums);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[b][e] = exp2_fast(s[b][e] - state.largest[b][e % 2]);
        state.total[b][e % 2] += s[b][e];
        if (apart) s[b][e] = exp2_fast(scaled[b][e] - state.largest_v[b][e % 2]);
      }
  }

  // The warp's keys and 32 bytes of V's rows.
  using Values = std::uint32_t[4];
  __device__ __forceinline__ RowSteps<C::kVBytes> value_steps(std::uint32_t v_tile) const {
    return {v_tile, warp * 16 + (lane & 7) + lane / 16 * 8, lane / 8 % 2};
  }

  // sums += V^T P^T of the warp's keys. e4m3: `first` is here already, and each group is read while the one
  // before it is converted and multiplied.
  __device__ __forceinline__ void add_values(const Scores& s, State& state, std::uint32_t v_tile,
                                             const Values& first) const {
    std::uint32_t weights[kBlocks][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[b][half] = transpose_8x8(Element::pack(s[b][half * 2], s[b][half * 2 + 1]));
    const RowSteps<C::kVBytes> v_at = value_steps(v_tile);
    constexpr int kGroups = C::kVBytes / 32;
    Values v[2] = {{first[0], first[1], first[2], first[3]}, {}};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Values& now = v[group % 2];
      if constexpr (C::kE4m3) {  // 32 dims: the even ones, then the odd ones
        if (group + 1 < kGroups) load_matrix_4_transposed(v[(group + 1) % 2], v_at(group + 1));
        __syncwarp();  // holds the compiler back from converting all of it at once
        std::uint32_t even[4], odd[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t bytes = __byte_perm(now[i], 0, 0x3120);
          even[i] = low_e4m3_to_f16(bytes);
          odd[i] = high_e4m3_to_f16(bytes);
        }
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          Element::mma(state.sums[2 * group][b], even, weights[b][0], weights[b][1]);
          Element::mma(state.sums[2 * group + 1][b], odd, weights[b][0], weights[b][1]);
        }
      } else {
        load_matrix_4_transposed(v[group % 2], v_at(group));
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
          Element::mma(state.sums[group][b], now, weights[b][0], weights[b][1]);
      }
    }
  }

  // The warps' sums become one, in the order of the warps.
  __device__ void finish(const Piece& piece, std::int64_t part, State& state) const {
    auto* warp_stats = reinterpret_cast<RowStat*>(stages.shared + C::kWarpStatsAt);
    RowStat* stats = stages.stats();
    auto* sums = reinterpret_cast<float*>(stages.shared + C::kStagesAt);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float& total = state.total[b][column];
        for (int step = 4; step < 32; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        const int row = row_of(b, column);
        if (lane < 4) warp_stats[warp * C::kTileRows + row] = stat_of(state.largest[b][column], total);
        float* at = sums + (warp * C::kTileRows + row) * C::kSumStride;
#pragma unroll
        for (int d = 0; d < C::kV / 16; ++d)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int dim =
                C::kE4m3 ? d / 2 * 32 + half * 16 + lane / 4 * 2 + d % 2 : d * 16 + half * 8 + lane / 4;
            at[dim] = state.sums[d][b][half * 2 + column];
          }
      }
    __syncthreads();
    for (int row = thread; row < C::kTileRows; row += C::kThreads) {
      RowStat all{-INFINITY, 0};
      for (int w = 0; w < C::kWarps; ++w) all.x = fmaxf(all.x, warp_stats[w * C::kTileRows + row].x);
      for (int w = 0; w < C::kWarps; ++w) {
        RowStat& one = warp_stats[w * C::kTileRows + row];
        const float weight = one.y != 0 ? exp2f(one.x - all.x) : 0.0f;
        all.y += one.y * weight;
        one.x = weight;
      }
      stats[row] = all;
    }
    __syncthreads();
    stages.finish(piece, part, [&](auto&& emit) {
      for (int i = thread; i < piece.rows * (C::kV / 2); i += C::kThreads) {
        const int row = i / (C::kV / 2);
        const int dim = i % (C::kV / 2) * 2;
        float2 sum{0, 0};
#pragma unroll
        for (int w = 0; w < C::kWarps; ++w) {
          const float weight = warp_stats[w * C::kTileRows + row].x;
          const float2 x =
              *reinterpret_cast<const float2*>(sums + (w * C::kTileRows + row) * C::kSumStride + dim);
          sum.x += weight * x.x;
          sum.y += weight * x.y;
        }
        emit(row, dim, sum.x, sum.y);
      }
    });
  }

  // With scales per token the sums are relative to a value of their own: bring them to that of the totals.
  __device__ __forceinline__ void align_sums(State& state) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const float by = exp2_fast(state.largest_v[b][column] - state.largest[b][column]);
#pragma unroll
        for (int d = 0; d < C::kV / 16; ++d) {
          state.sums[d][b][column] *= by;
          state.sums[d][b][2 + column] *= by;
        }
      }
  }

  __device__ void run_piece(const Piece& piece, std::int64_t part) const {
    stages.start(piece, per_token());
    LookAhead<C> look_ahead(stages, piece);
    __syncthreads();
    Queries q;
    take_queries(q, score_rule<C>(stages.p, piece).factor);
    State state;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        state.largest[b][column] = state.largest_v[b][column] = kNoScore;
        state.total[b][column] = 0;
#pragma unroll
        for (int d = 0; d < C::kV / 16; ++d) state.sums[d][b][column] = state.sums[d][b][2 + column] = 0;
      }

    for (int tile = 0; tile < piece.tiles; ++tile) {
      stages.advance(piece, per_token(), tile);
      look_ahead.step(piece, tile);
      const std::int32_t tile_key = (piece.first_tile + tile) * kTileKeys;
      Scores s;
      scores_of(s, q, stages.k(tile));
      shape_scores(s, stages.scales(tile));
      if (tile_key < piece.unit.full_begin || tile_key + kTileKeys > piece.unit.full_end)
        again().hide_scores(s, piece, tile_key);
      Values first{};
      if constexpr (C::kE4m3) load_matrix_4_transposed(first, again().value_steps(stages.v(tile))(0));
      soften(s, state, stages.scales(tile) + kTileKeys);
      again().add_values(s, state, stages.v(tile), first);
    }
    copy_wait<0>();
    __syncthreads();
    if (per_token()) align_sums(state);
    again().finish(piece, part, state);
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    attend_narrow(const __grid_constant__ RunParams p) {
  attend_part<C, NarrowAttend<C>>(p);
}

}  // namespace quire::attention::cuda
