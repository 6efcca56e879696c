// Flash attention (Dao 2022, 2023) for steps of many rows: each warp has its own 16 or 32 packed rows and all
// keys of a tile. Fragments are read from shared memory one product ahead, and the weights of the next 16
// keys are computed between the products of these, so that the tensor cores do not wait for either. Features
// are run-time switches.
#pragma once

#include "attention/backends/cuda/stages.cuh"

namespace quire::attention::cuda {

template <class T_, bool kE4m3_, int kQk_, int kV_, int kFragments_, int kRowWarps_, int kStages_,
          int kBlocksPerSm_>
struct WideConfig
    : TileConfig<T_, kE4m3_, kQk_, kV_, 16 * kFragments_ * kRowWarps_, 32 * kRowWarps_, kStages_> {
  using Base = TileConfig<T_, kE4m3_, kQk_, kV_, 16 * kFragments_ * kRowWarps_, 32 * kRowWarps_, kStages_>;
  static constexpr int kFragments = kFragments_;  // of 16 rows, per warp
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kSharedBytes = Base::kTilesEnd;
};

template <class C>
struct WideAttend {
  using T = typename C::T;
  static constexpr int kKeyBlocks = kTileKeys / 8;
  static constexpr int kPairs = kTileKeys / 16;

  const Stages<C> stages;
  const int thread = thread_again();
  const int lane = thread % 32;
  const int warp = thread / 32;

  struct State {
    float sums[C::kFragments][C::kV / 8][4];
    // What weights are relative to, in base-2 units: not more than kSlack below the largest score.
    float largest[C::kFragments][2];
    float total[C::kFragments][2];  // this thread's share
  };
  using Scores = float[C::kFragments][kKeyBlocks][4];
  using Weights = std::uint32_t[C::kFragments][4];

  __device__ WideAttend(const RunParams& params, char* memory) : stages{params, memory} {}

  // The same, with what depends on the thread computed anew: see thread_again().
  __device__ __forceinline__ WideAttend again() const { return WideAttend(stages.p, stages.shared); }

  // Row of the tile that the thread's element pair `half` of fragment f is in.
  __device__ int row_of(int f, int half) const {
    return (warp * C::kFragments + f) * 16 + half * 8 + lane / 4;
  }

  static constexpr int kParts = C::kE4m3 ? 2 : 1;  // products of 16 dims that 32 bytes of K hold

  // scores += Q K^T of 16 keys and 32 bytes of K's rows.
  __device__ __forceinline__ void add_scores(Scores& s, const std::uint32_t (&q)[kParts][C::kFragments][4],
                                             const std::uint32_t (&k)[4], int pair) const {
    if constexpr (C::kE4m3) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // i: key block i / 2, dims 16 * (i % 2)
        std::uint32_t low, high;
        from_e4m3_row<T>(k[i], low, high);
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f) T::mma(s[f][pair * 2 + i / 2], q[i % 2][f], low, high);
      }
    } else {
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        T::mma(s[f][pair * 2], q[0][f], k[0], k[1]);
        T::mma(s[f][pair * 2 + 1], q[0][f], k[2], k[3]);
      }
    }
  }

  // scores = Q K^T of the tile.
  __device__ __forceinline__ void scores_of(Scores& s, std::uint32_t k_tile) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[f][b][e] = 0;
    // A matrix of ldmatrix is 8 keys x 16 bytes: 8 dims of T, 16 of e4m3. Four of them are 16 keys x 32
    // bytes.
    constexpr int kItems = C::kQk / 16 / kParts * kPairs;  // (32 bytes, 16 keys)
    const RowSteps<C::kQk * 2> q_at(shared_address(stages.shared + C::kQAt),
                                    warp * C::kFragments * 16 + lane % 16, lane / 16);
    const RowSteps<C::kKBytes> k_at(k_tile, (lane & 7) + (lane / 16) * 8, (lane / 8) % 2);
    std::uint32_t q[2][kParts][C::kFragments][4];
    std::uint32_t k[2][4];
    const auto load_q = [&](int step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f)
          load_matrix_4(q[step % 2][part][f], q_at(step * kParts + part) + f * 16 * C::kQk * 2);
    };
    const auto load_k = [&](int item) {
      load_matrix_4(k[item % 2], k_at(item / kPairs) + item % kPairs * 16 * C::kKBytes);
    };
    load_q(0);
    load_k(0);
#pragma unroll
    for (int step = 0; step < kItems / kPairs; ++step)
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int item = step * kPairs + pair;
        if (item + 1 < kItems) load_k(item + 1);
        if (pair == kPairs - 2 && item + 2 < kItems) load_q(step + 1);
        add_scores(s, q[step % 2], k[item % 2], pair);
      }
  }

  // Scores to base-2 units where a factor alone does not do it.
  __device__ __forceinline__ void shape_scores(Scores& s, const ScoreRule& rule,
                                               const float* k_scales) const {
    const float cap2 = rule.cap * kLog2e;
    const float inverse = 1.0f / cap2;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float x = s[f][b][e] * rule.factor;
          if (rule.per_token) x *= k_scales[b * 8 + lane % 4 * 2 + e % 2];
          s[f][b][e] = rule.cap > 0 ? capped(x, cap2, inverse) : x;
        }
  }

  __device__ __forceinline__ void hide_scores(Scores& s, const Piece& piece, std::int32_t tile_key) const {
    const RowTable table = stages.rows();
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t word =
            seen_bits(stages.p, piece, table, row_of(f, half), tile_key) >> (lane % 4 * 2);
#pragma unroll
        for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (((word >> (b * 8 + e)) & 1) == 0) s[f][b][half * 2 + e] = -INFINITY;
      }
  }

  // Makes room for the scores of a tile: where one is far above `largest`, that becomes the largest score and
  // the sums so far shrink.
  __device__ __forceinline__ void settle(const Scores& s, State& state, float factor) const {
    float top[C::kFragments][2];
    bool grows = false;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[f][half] = fmaxf(s[f][0][half * 2], s[f][0][half * 2 + 1]);
#pragma unroll
        for (int b = 1; b < kKeyBlocks; ++b)
          top[f][half] = fmaxf(top[f][half], fmaxf(s[f][b][half * 2], s[f][b][half * 2 + 1]));
        top[f][half] *= factor;
        grows = grows || top[f][half] > state.largest[f][half] + kSlack;
      }
    if (!__any_sync(0xffffffffu, grows)) return;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float all = fmaxf(top[f][half], __shfl_xor_sync(0xffffffffu, top[f][half], 1));
        all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 2));
        const float before = state.largest[f][half];
        state.largest[f][half] = fmaxf(before, all);
        const float shrink = exp2_fast(before - state.largest[f][half]);
        state.total[f][half] *= shrink;
#pragma unroll
        for (int b = 0; b < C::kV / 8; ++b) {
          state.sums[f][b][half * 2] *= shrink;
          state.sums[f][b][half * 2 + 1] *= shrink;
        }
      }
  }

  // Register i of fragment f of the weights of 16 keys.
  __device__ __forceinline__ std::uint32_t soften(const Scores& s, State& state, int pair, int f, int i,
                                                  float factor, const float* v_scales) const {
    float x[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = exp2_fast(fmaf(s[f][pair * 2 + i / 2][i % 2 * 2 + e], factor, -state.largest[f][i % 2]));
      state.total[f][i % 2] += x[e];
      if (C::kE4m3 && v_scales != nullptr) x[e] *= v_scales[pair * 16 + i / 2 * 8 + lane % 4 * 2 + e];
    }
    return T::pack(x[0], x[1]);
  }

  // sums += P V of 16 keys and 32 bytes of V's rows.
  __device__ __forceinline__ void add_group(State& state, const std::uint32_t (&v)[4], const Weights& weights,
                                            int group) const {
    if constexpr (C::kE4m3) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // 16 dims: the even ones in one block of 8, the odd ones in the next
        std::uint32_t even[2], odd[2];
        from_e4m3_columns<T>(v[2 * i], even[0], odd[0]);
        from_e4m3_columns<T>(v[2 * i + 1], even[1], odd[1]);
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f) {
          T::mma(state.sums[f][group * 4 + i * 2], weights[f], even[0], even[1]);
          T::mma(state.sums[f][group * 4 + i * 2 + 1], weights[f], odd[0], odd[1]);
        }
      }
    } else {
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        T::mma(state.sums[f][group * 2], weights[f], v[0], v[1]);
        T::mma(state.sums[f][group * 2 + 1], weights[f], v[2], v[3]);
      }
    }
  }

  // sums += P V of the tile. v_scales: null without scales per token.
  __device__ __forceinline__ void add_values(const Scores& s, State& state, std::uint32_t v_tile,
                                             float factor, const float* v_scales) const {
    constexpr int kGroups = C::kVBytes / 32;  // 32 bytes of a row: 16 dims of T, 32 of e4m3
    constexpr int kRegisters = 4 * C::kFragments;
    const RowSteps<C::kVBytes> v_at(v_tile, lane % 16, lane / 16);
    std::uint32_t v[2][4];
    Weights weights[2];
    const auto load_v = [&](int item) {
      load_matrix_4_transposed(v[item % 2], v_at(item % kGroups) + item / kGroups * 16 * C::kVBytes);
    };
    load_v(0);
#pragma unroll
    for (int n = 0; n < kRegisters; ++n)
      weights[0][n / 4][n % 4] = soften(s, state, 0, n / 4, n % 4, factor, v_scales);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      // Holds the compiler back from computing all weights at once, for which there are no registers.
      __syncwarp();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int item = pair * kGroups + group;
        if (item + 1 < kPairs * kGroups) load_v(item + 1);
        if (pair + 1 < kPairs) {
#pragma unroll
          for (int n = group * kRegisters / kGroups; n < (group + 1) * kRegisters / kGroups; ++n)
            weights[(pair + 1) % 2][n / 4][n % 4] =
                soften(s, state, pair + 1, n / 4, n % 4, factor, v_scales);
        }
        add_group(state, v[item % 2], weights[pair % 2], group);
      }
    }
  }

  // call(row, dim, x, y) for each pair of neighbouring dims that the thread holds.
  template <class F>
  __device__ __forceinline__ void each_sum(const State& state, F&& call) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < C::kV / 8; b += 2)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* x = &state.sums[f][b][half * 2];
          const float* y = &state.sums[f][b + 1][half * 2];
          const int c = lane % 4;
          if (C::kE4m3) {  // columns 2c, 2c + 1 of the blocks are dims 4c, 4c + 2 and 4c + 1, 4c + 3
            call(row_of(f, half), b * 8 + 4 * c, x[0], y[0]);
            call(row_of(f, half), b * 8 + 4 * c + 2, x[1], y[1]);
          } else {
            call(row_of(f, half), b * 8 + 2 * c, x[0], x[1]);
            call(row_of(f, half), b * 8 + 8 + 2 * c, y[0], y[1]);
          }
        }
  }

  __device__ void finish(const Piece& piece, std::int64_t part, State& state) const {
    RowStat* stats = stages.stats();
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = state.total[f][half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (lane % 4 == 0) stats[row_of(f, half)] = stat_of(state.largest[f][half], total);
      }
    __syncthreads();
    stages.finish(piece, part, [&](auto&& emit) { each_sum(state, emit); });
  }

  __device__ void run_piece(const Piece& piece, std::int64_t part) const {
    const bool per_token = C::kE4m3 && stages.p.scale_kind == 3;
    const bool shaped = per_token || stages.p.softcap > 0;
    const float factor = shaped ? 1.0f : score_rule<C>(stages.p, piece).factor;
    stages.start(piece, per_token);
    LookAhead<C> look_ahead(stages, piece);
    State state;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state.largest[f][half] = kNoScore;
        state.total[f][half] = 0;
#pragma unroll
        for (int b = 0; b < C::kV / 8; ++b) state.sums[f][b][half * 2] = state.sums[f][b][half * 2 + 1] = 0;
      }
    for (int tile = 0; tile < piece.tiles; ++tile) {
      stages.advance(piece, per_token, tile);
      look_ahead.step(piece, tile);
      const std::int32_t tile_key = (piece.first_tile + tile) * kTileKeys;
      Scores s;
      again().scores_of(s, stages.k(tile));
      if (shaped) [[unlikely]]
        again().shape_scores(s, score_rule<C>(stages.p, piece), stages.scales(tile));
      if (tile_key < piece.unit.full_begin || tile_key + kTileKeys > piece.unit.full_end) [[unlikely]]
        again().hide_scores(s, piece, tile_key);
      settle(s, state, factor);
      again().add_values(s, state, stages.v(tile), factor,
                         per_token ? stages.scales(tile) + kTileKeys : nullptr);
    }
    copy_wait<0>();
    __syncthreads();
    again().finish(piece, part, state);
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    attend_wide(const __grid_constant__ RunParams p) {
  attend_part<C, WideAttend<C>>(p);
}

}  // namespace quire::attention::cuda
