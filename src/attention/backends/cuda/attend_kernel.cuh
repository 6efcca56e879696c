// Flash attention (Dao 2022, 2023) with mma.sync on pieces of the line of key tiles (step.h). One template
// for two forms: wide, each warp has its own 16 or 32 rows and all keys of a tile; narrow, 16 rows, each warp
// has its own 16 keys of a tile and its own running softmax, joined at the end of the piece. Features are
// run-time switches.
#pragma once

#include "attention/backends/cuda/finish.cuh"

namespace quire::attention::cuda {

template <class T_, bool kE4m3_, int kQk_, int kV_, int kFragments_, int kRowWarps_, int kKeyWarps_,
          int kStages_, int kBlocksPerSm_>
struct Config {
  using T = T_;
  static constexpr bool kE4m3 = kE4m3_;  // K and V are e4m3, else T
  static constexpr int kQk = kQk_;       // head dims as compiled
  static constexpr int kV = kV_;
  static constexpr int kFragments = kFragments_;  // of 16 rows, per warp
  static constexpr int kRowWarps = kRowWarps_;
  static constexpr int kKeyWarps = kKeyWarps_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;

  static constexpr int kThreads = 32 * kRowWarps * kKeyWarps;
  static constexpr int kTileRows = 16 * kFragments * kRowWarps;
  static constexpr int kWarpKeys = kTileKeys / kKeyWarps;
  static constexpr int kKBytes = kQk * (kE4m3 ? 1 : 2);
  static constexpr int kVBytes = kV * (kE4m3 ? 1 : 2);
  static constexpr int kStageBytes = kTileKeys * (kKBytes + kVBytes);
  static constexpr int kLookups = kStages + 1;  // tiles whose row offsets are kept
  // Q stays in registers where they suffice.
  static constexpr bool kKeepQ = kKeyWarps > 1 && kQk <= 128 && kV <= 128;
  static constexpr int kSumStride = kV + 8;  // of the warps' sums in shared memory

  static constexpr int kQAt = 0;
  static constexpr int kStagesAt = kQAt + kTileRows * kQk * 2;
  static constexpr int kScalesAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kLookupsAt = kScalesAt + kStages * 2 * kTileKeys * 4;
  static constexpr int kRowsAt = kLookupsAt + kLookups * static_cast<int>(sizeof(Lookup));
  static constexpr int kStatsAt = kRowsAt + 2 * kTileRows * 4;
  static constexpr int kWarpStatsAt = kStatsAt + kTileRows * 8;
  static constexpr int kFactorsAt = kWarpStatsAt + kKeyWarps * kTileRows * 8;
  static constexpr int kLastAt = kFactorsAt + kTileRows * 4;
  static constexpr int kPieceAt = kLastAt + 16;
  static constexpr int kSharedBytes = kPieceAt + static_cast<int>(sizeof(Piece));
  static_assert(kKeyWarps == 1 || kKeyWarps * kTileRows * kSumStride * 4 <= kStages * kStageBytes);
};

// What a warp keeps over a piece.
template <class C>
struct WarpState {
  float sums[C::kFragments][C::kV / 8][4];
  float largest[C::kFragments]
               [2];               // of scores as they come out of the product (times `factor`: base-2 units)
  float total[C::kFragments][2];  // this thread's share
};

// How scores become base-2 units, for one piece.
struct ScoreRule {
  float factor = 1;        // scale * log2(e) with K's scale
  float cap = 0;           // softcap, 0: none
  bool per_token = false;  // K and V have scales per token
};

template <class C>
struct Attend {
  using T = typename C::T;
  static constexpr int kKeyBlocks = C::kWarpKeys / 8;

  const RunParams& p;
  char* shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_warp = warp / C::kKeyWarps;
  const int key_warp = warp % C::kKeyWarps;

  __device__ Attend(const RunParams& params, char* memory) : p(params), shared(memory) {}

  __device__ RowTable rows() const {
    auto* begin = reinterpret_cast<std::int32_t*>(shared + C::kRowsAt);
    return {begin, begin + C::kTileRows};
  }
  __device__ Lookup& lookup(int tile) const {
    return reinterpret_cast<Lookup*>(shared + C::kLookupsAt)[tile % C::kLookups];
  }
  __device__ float* scales(int tile) const {
    return reinterpret_cast<float*>(shared + C::kScalesAt) + tile % C::kStages * 2 * kTileKeys;
  }
  __device__ std::uint32_t stage(int tile) const {
    return shared_address(shared + C::kStagesAt + tile % C::kStages * C::kStageBytes);
  }
  // Row of the tile that the thread's element pair `half` of fragment f is in.
  __device__ int row_of(int f, int half) const {
    return (row_warp * C::kFragments + f) * 16 + half * 8 + lane / 4;
  }

  __device__ void fetch(const Piece& piece, const ScoreRule& rule, int tile) const {
    if (tile < piece.tiles) {
      const Lookup& at = lookup(tile);
      fetch_rows<C::kKBytes, C::kThreads>(stage(tile), p.k, at.k, p.qk_dim * (C::kE4m3 ? 1 : 2),
                                          p.kv_aligned);
      fetch_rows<C::kVBytes, C::kThreads>(stage(tile) + kTileKeys * C::kKBytes, p.v, at.v,
                                          p.v_dim * (C::kE4m3 ? 1 : 2), p.kv_aligned);
      if (rule.per_token) fetch_scales(p, at, scales(tile), scales(tile) + kTileKeys);
    }
    copy_commit();  // one group per tile, empty ones too, so that counting them stays simple
  }

  __device__ __forceinline__ RowSteps<C::kQk * 2> q_steps() const {
    return {shared_address(shared + C::kQAt), row_warp * C::kFragments * 16 + lane % 16, lane / 16};
  }
  __device__ __forceinline__ static void load_q(std::uint32_t (&a)[4], const RowSteps<C::kQk * 2>& steps,
                                                int f, int step) {
    load_matrix_4(a, steps(step) + f * 16 * C::kQk * 2);
  }

  // scores += Q K^T of the warp's keys.
  __device__ __forceinline__ void scores_of(float (&s)[C::kFragments][kKeyBlocks][4],
                                            const std::uint32_t (*kept_q)[C::kKeepQ ? C::kQk / 16 : 1][4],
                                            std::uint32_t k_tile) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[f][b][e] = 0;
    // A matrix of ldmatrix is 8 keys x 16 bytes: 8 dims of T, 16 of e4m3. Four of them are 16 keys x 32
    // bytes.
    constexpr int kSteps = C::kKBytes / 32;
    const RowSteps<C::kQk* 2> q_at = q_steps();
    const RowSteps<C::kKBytes> k_at(k_tile, key_warp * C::kWarpKeys + (lane & 7) + (lane / 16) * 8,
                                    (lane / 8) % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      constexpr int kParts = C::kE4m3 ? 2 : 1;  // products of 16 dims that these 32 bytes hold
      std::uint32_t q[kParts][C::kFragments][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f) {
          if constexpr (C::kKeepQ) {
#pragma unroll
            for (int i = 0; i < 4; ++i) q[part][f][i] = kept_q[f][step * kParts + part][i];
          } else {
            load_q(q[part][f], q_at, f, step * kParts + part);
          }
        }
#pragma unroll
      for (int pair = 0; pair < kKeyBlocks / 2; ++pair) {
        std::uint32_t k[4];
        load_matrix_4(k, k_at(step) + pair * 16 * C::kKBytes);
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
    }
  }

  // Scores to base-2 units where a factor alone does not do it.
  __device__ __forceinline__ void shape_scores(float (&s)[C::kFragments][kKeyBlocks][4],
                                               const ScoreRule& rule, const float* k_scales) const {
    const float cap2 = rule.cap * kLog2e;
    const float inverse = 1.0f / cap2;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float x = s[f][b][e] * rule.factor;
          if (rule.per_token) x *= k_scales[key_warp * C::kWarpKeys + b * 8 + lane % 4 * 2 + e % 2];
          s[f][b][e] = rule.cap > 0 ? capped(x, cap2, inverse) : x;
        }
  }

  __device__ __forceinline__ void hide_scores(float (&s)[C::kFragments][kKeyBlocks][4], const Piece& piece,
                                              std::int32_t tile_key) const {
    const RowTable table = rows();
    const bool tree = p.step.tree_bits != nullptr && piece.unit.prefix == 0;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(f, half);
        std::uint64_t word = interval_bits(table.begin[row] - tile_key, table.end[row] - tile_key);
        if (tree && row < piece.rows) {
          const std::int32_t query = (piece.unit.first_row + row) / p.ratio;
          word |= tree_word(p.step, piece.unit, query, tile_key);
        }
        word >>= key_warp * C::kWarpKeys + lane % 4 * 2;
#pragma unroll
        for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (((word >> (b * 8 + e)) & 1) == 0) s[f][b][half * 2 + e] = -INFINITY;
      }
  }

  // Online softmax: scores become weights relative to the row's largest score so far.
  __device__ __forceinline__ void soften(float (&s)[C::kFragments][kKeyBlocks][4], WarpState<C>& state,
                                         float factor) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      float shrink[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = state.largest[f][half];
#pragma unroll
        for (int b = 0; b < kKeyBlocks; ++b)
          top = fmaxf(top, fmaxf(s[f][b][half * 2], s[f][b][half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float scaled = top == -INFINITY ? 0.0f : top * factor;
        shrink[half] = exp2_fast(state.largest[f][half] * factor - scaled);
        state.largest[f][half] = top;
        float sum = 0;
#pragma unroll
        for (int b = 0; b < kKeyBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[f][b][half * 2 + e];
            x = exp2_fast(fmaf(x, factor, -scaled));
            sum += x;
          }
        state.total[f][half] = state.total[f][half] * shrink[half] + sum;
      }
      if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int b = 0; b < C::kV / 8; ++b)
#pragma unroll
          for (int e = 0; e < 4; ++e) state.sums[f][b][e] *= shrink[e / 2];
      }
    }
  }

  // sums += P V of the warp's keys.
  __device__ __forceinline__ void add_values(float (&s)[C::kFragments][kKeyBlocks][4], WarpState<C>& state,
                                             std::uint32_t v_tile, const ScoreRule& rule,
                                             const float* v_scales) const {
    const RowSteps<C::kVBytes> v_at(v_tile, key_warp * C::kWarpKeys + lane % 16, lane / 16);
#pragma unroll
    for (int pair = 0; pair < kKeyBlocks / 2; ++pair) {
      std::uint32_t weights[C::kFragments][4];
      float scale[4] = {1, 1, 1, 1};
      if (C::kE4m3 && rule.per_token) {
        const float* at = v_scales + key_warp * C::kWarpKeys + pair * 16 + lane % 4 * 2;
        scale[0] = at[0], scale[1] = at[1], scale[2] = at[8], scale[3] = at[9];
      }
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* x = &s[f][pair * 2 + i / 2][i % 2 * 2];
          const float low = C::kE4m3 ? x[0] * scale[i / 2 * 2] : x[0];
          const float high = C::kE4m3 ? x[1] * scale[i / 2 * 2 + 1] : x[1];
          weights[f][i] = T::pack(low, high);
        }
#pragma unroll
      for (int group = 0; group < C::kVBytes / 32; ++group) {  // 32 bytes of a row: 16 dims of T, 32 of e4m3
        std::uint32_t v[4];
        load_matrix_4_transposed(v, v_at(group) + pair * 16 * C::kVBytes);
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
    }
  }

  // call(row, dim, x, y) for each pair of neighbouring dims that the thread holds.
  template <class F>
  __device__ __forceinline__ void each_sum(const WarpState<C>& state, F&& call) const {
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

  __device__ void store_stats(WarpState<C>& state, float factor, RowStat* stats) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = state.total[f][half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float top = state.largest[f][half];
        if (lane % 4 == 0) stats[row_of(f, half)] = {top == -INFINITY ? top : top * factor, total};
      }
  }

  // Narrow: the warps' sums become one, in the order of the warps.
  __device__ void finish_narrow(const Piece& piece, std::int64_t part, WarpState<C>& state,
                                float factor) const {
    auto* warp_stats = reinterpret_cast<RowStat*>(shared + C::kWarpStatsAt);
    auto* stats = reinterpret_cast<RowStat*>(shared + C::kStatsAt);
    auto* sums = reinterpret_cast<float*>(shared + C::kStagesAt);
    store_stats(state, factor, warp_stats + key_warp * C::kTileRows);
    each_sum(state, [&](int row, int dim, float x, float y) {
      float* at = sums + (key_warp * C::kTileRows + row) * C::kSumStride + dim;
      *reinterpret_cast<float2*>(at) = {x, y};
    });
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < C::kTileRows; row += C::kThreads) {
      RowStat all{-INFINITY, 0};
      for (int w = 0; w < C::kKeyWarps; ++w) all.x = fmaxf(all.x, warp_stats[w * C::kTileRows + row].x);
      for (int w = 0; w < C::kKeyWarps; ++w) {
        RowStat& one = warp_stats[w * C::kTileRows + row];
        const float weight = one.y != 0 ? exp2f(one.x - all.x) : 0.0f;
        all.y += one.y * weight;
        one.x = weight;
      }
      stats[row] = all;
    }
    __syncthreads();
    finish_piece<T>(p, piece, part, C::kTileRows, C::kV, stats, factors(), last(), [&](auto&& emit) {
      for (int i = static_cast<int>(threadIdx.x); i < piece.rows * (C::kV / 2); i += C::kThreads) {
        const int row = i / (C::kV / 2);
        const int dim = i % (C::kV / 2) * 2;
        float2 sum{0, 0};
#pragma unroll
        for (int w = 0; w < C::kKeyWarps; ++w) {
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

  __device__ float* factors() const { return reinterpret_cast<float*>(shared + C::kFactorsAt); }
  __device__ std::int32_t* last() const { return reinterpret_cast<std::int32_t*>(shared + C::kLastAt); }

  __device__ ScoreRule rule_of(const Piece& piece) const {
    ScoreRule rule;
    rule.per_token = C::kE4m3 && p.scale_kind == 3;
    rule.factor = p.scale * kLog2e * head_scale(p, p.k_scale, piece.head);
    rule.cap = p.softcap;
    return rule;
  }

  __device__ void start(const Piece& piece) const {
    const RowTable table = rows();
    for (int row = static_cast<int>(threadIdx.x); row < C::kTileRows; row += C::kThreads) {
      RowKeys keys;
      if (row < piece.rows) keys = row_keys(p.step, piece.unit, (piece.unit.first_row + row) / p.ratio);
      table.begin[row] = keys.begin;
      table.end[row] = keys.end;
    }
    if (piece.holes != 0) __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < C::kStages * kTileKeys; i += C::kThreads) {
      const int slot = i % kTileKeys;
      const int tile = i / kTileKeys;
      const Ahead ahead = ask(p, piece, table, tile, slot);
      answer(p, piece, ahead, lookup(tile), slot, false);
      answer(p, piece, ahead, lookup(tile), slot, true);
    }
  }

  __device__ void run_piece(const Piece& piece, std::int64_t part) const {
    const ScoreRule rule = rule_of(piece);
    const bool shaped = rule.per_token || rule.cap > 0;
    const float factor = shaped ? 1.0f : rule.factor;
    start(piece);
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < C::kStages - 1; ++tile) fetch(piece, rule, tile);
    fetch_queries<C::kQk, C::kTileRows, C::kThreads, C::kE4m3>(p, piece, shared + C::kQAt);
    // Of tile + kStages. Two warps look up K, two V, so that none is late.
    const int slot = static_cast<int>(threadIdx.x) % kTileKeys;
    const bool looks_up = threadIdx.x < 2 * kTileKeys;
    const bool for_v = threadIdx.x >= kTileKeys;
    Ahead ahead;
    if (looks_up) ahead = ask(p, piece, rows(), C::kStages, slot);

    WarpState<C> state;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      state.largest[f][0] = state.largest[f][1] = -INFINITY;
      state.total[f][0] = state.total[f][1] = 0;
#pragma unroll
      for (int b = 0; b < C::kV / 8; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) state.sums[f][b][e] = 0;
    }
    std::uint32_t kept_q[C::kFragments][C::kKeepQ ? C::kQk / 16 : 1][4];
    if constexpr (C::kKeepQ) {
      __syncthreads();
      const RowSteps<C::kQk* 2> q_at = q_steps();
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
        for (int step = 0; step < C::kQk / 16; ++step) load_q(kept_q[f][step], q_at, f, step);
    }

    for (int tile = 0; tile < piece.tiles; ++tile) {
      copy_wait<C::kStages - 2>();
      __syncthreads();  // tile is here, and nobody reads the stage of tile - 1 any more
      fetch(piece, rule, tile + C::kStages - 1);
      if (looks_up) {
        answer(p, piece, ahead, lookup(tile + C::kStages), slot, for_v);
        ahead = ask(p, piece, rows(), tile + C::kStages + 1, slot);
      }
      const std::int32_t tile_key = (piece.first_tile + tile) * kTileKeys;
      float s[C::kFragments][kKeyBlocks][4];
      scores_of(s, kept_q, stage(tile));
      if (shaped) shape_scores(s, rule, scales(tile));
      if (tile_key < piece.unit.full_begin || tile_key + kTileKeys > piece.unit.full_end)
        hide_scores(s, piece, tile_key);
      soften(s, state, factor);
      add_values(s, state, stage(tile) + kTileKeys * C::kKBytes, rule, scales(tile) + kTileKeys);
    }
    copy_wait<0>();
    __syncthreads();
    if constexpr (C::kKeyWarps > 1) {
      finish_narrow(piece, part, state, factor);
    } else {
      auto* stats = reinterpret_cast<RowStat*>(shared + C::kStatsAt);
      store_stats(state, factor, stats);
      __syncthreads();
      finish_piece<T>(p, piece, part, C::kTileRows, C::kV, stats, factors(), last(),
                      [&](auto&& emit) { each_sum(state, emit); });
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) attend(const __grid_constant__ RunParams p) {
  extern __shared__ __align__(128) char shared[];
  clear_idle_rows(p);
  const Attend<C> attend(p, shared);
  Piece& piece = *reinterpret_cast<Piece*>(shared + C::kPieceAt);
  const std::int64_t part = blockIdx.x;
  for_each_piece(p, part, C::kTileRows, piece, [&] { attend.run_piece(piece, part); });
}

}  // namespace quire::attention::cuda
