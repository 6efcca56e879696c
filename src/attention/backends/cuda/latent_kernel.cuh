// Absorbed latent attention (MLA, DeepSeek-V2): one KV head whose row is [latent 512 | rope 64], V is the
// latent part of the same row. A tile of keys in shared memory serves both products. 64 rows (heads x
// queries) a block, 8 warps: for the scores they are 2 x 4 over rows x keys, for the output 2 x 4 over rows x
// dims, and the weights cross over through shared memory. e4m3 tiles are widened in shared memory first.
#pragma once

#include "attention/backends/cuda/finish.cuh"

namespace quire::attention::cuda {

template <class T_, bool kE4m3_>
struct LatentConfig {
  using T = T_;
  static constexpr bool kE4m3 = kE4m3_;
  static constexpr int kQk = 576;
  static constexpr int kV = 512;
  static constexpr int kThreads = 256;
  static constexpr int kTileRows = 64;
  static constexpr int kFragments = 2;       // of 16 rows, per warp
  static constexpr int kWarpKeys = 16;       // in the scores
  static constexpr int kWarpDims = 128;      // in the output
  static constexpr int kRowBytes = kQk * 2;  // of a tile as the products read it
  static constexpr int kStoredBytes = kQk * (kE4m3 ? 1 : 2);
  static constexpr int kTileBytes = kTileKeys * kRowBytes;
  static constexpr int kStageBytes = kTileKeys * kStoredBytes;
  static constexpr int kStages = 2;
  static constexpr int kLookups = kE4m3 ? 1 : 2;  // tiles whose row offsets are kept

  static constexpr int kQAt = 0;
  static constexpr int kStagesAt = kQAt + kTileRows * kRowBytes;
  static constexpr int kWideAt = kStagesAt + kStages * kStageBytes;  // e4m3: the widened tile
  static constexpr int kWeightsAt = kWideAt + (kE4m3 ? kTileBytes : 0);
  static constexpr int kLookupsAt = kWeightsAt + kTileRows * kTileKeys * 2;
  static constexpr int kRowsAt = kLookupsAt + kLookups * kTileKeys * 8;
  static constexpr int kTopsAt = kRowsAt + 2 * kTileRows * 4;  // [4 key warps][rows]
  static constexpr int kStatsAt = kTopsAt;                     // at the end of a piece
  static constexpr int kFactorsAt = kTopsAt + kTileRows * 8;
  static constexpr int kLastAt = kFactorsAt + kTileRows * 4;
  static constexpr int kScalesAt = kTopsAt + 4 * kTileRows * 4;  // e4m3 per token: [stages][keys]
  static constexpr int kPieceAt = kScalesAt + (kE4m3 ? kStages * kTileKeys * 4 : 0);
  static constexpr int kSharedBytes = kPieceAt + static_cast<int>(sizeof(Piece));
  static_assert(kSharedBytes <= 227 * 1024 && kLastAt + 4 <= kScalesAt);
};

template <class C>
struct LatentAttend {
  using T = typename C::T;
  const RunParams& p;
  char* shared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_half = warp / 4;  // rows [32 * row_half, ...)
  const int quarter = warp % 4;   // keys [16 * quarter, ...) and dims [128 * quarter, ...)

  struct State {
    float sums[C::kFragments][C::kWarpDims / 8][4];
    float largest[C::kFragments][2];
    float total[C::kFragments][2];
  };

  __device__ LatentAttend(const RunParams& params, char* memory) : p(params), shared(memory) {}

  __device__ RowTable rows() const {
    auto* begin = reinterpret_cast<std::int32_t*>(shared + C::kRowsAt);
    return {begin, begin + C::kTileRows};
  }
  __device__ std::int64_t* lookup(int tile) const {
    return reinterpret_cast<std::int64_t*>(shared + C::kLookupsAt) + tile % C::kLookups * kTileKeys;
  }
  __device__ float* scales(int tile) const {
    return reinterpret_cast<float*>(shared + C::kScalesAt) + tile % C::kStages * kTileKeys;
  }
  __device__ char* stage(int tile) const {
    return shared + C::kStagesAt + tile % C::kStages * C::kStageBytes;
  }
  __device__ char* tile_at(int tile) const { return C::kE4m3 ? shared + C::kWideAt : stage(tile); }
  __device__ int row_of(int f, int half) const { return row_half * 32 + f * 16 + half * 8 + lane / 4; }
  // The four warps that share rows.
  __device__ void meet_row_half() const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + row_half) : "memory");
  }

  __device__ void look_up(const Piece& piece, const Ahead& ahead, int tile, int slot) const {
    std::int64_t at = 0;
    float scale = 0;
    if (ahead.key >= 0) {
      const bool dense = p.step.kv_offsets != nullptr;
      const std::int64_t page = dense ? 0 : ahead.page;
      const std::int64_t token =
          dense ? p.step.kv_offsets[piece.unit.table_row] + ahead.key
                : ahead.key - (p.page_shift >= 0 ? ahead.key >> p.page_shift << p.page_shift
                                                 : ahead.key / p.page_size * p.page_size);
      at = (page * p.k_stride.page + token * p.k_stride.token) | 1;
      if (C::kE4m3 && p.scale_kind == 3)
        scale = *reinterpret_cast<const float*>(p.k_scale + page * p.scale_stride.page +
                                                token * p.scale_stride.token);
    }
    lookup(tile)[slot] = at;
    if (C::kE4m3) scales(tile)[slot] = scale;
  }

  __device__ void fetch(const Piece& piece, int tile) const {
    if (tile < piece.tiles)
      fetch_rows<C::kStoredBytes, C::kThreads>(shared_address(stage(tile)), p.k, lookup(tile),
                                               C::kStoredBytes, p.kv_aligned);
    copy_commit();
  }

  // e4m3 rows to T, 16 values a thread and turn.
  __device__ void widen(int tile) const {
    const char* from = stage(tile);
    char* to = shared + C::kWideAt;
    constexpr int kChunks = C::kStoredBytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += C::kThreads) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const uint4 in = *reinterpret_cast<const uint4*>(from + chunk_at<C::kStoredBytes>(row, chunk));
      uint4 low, high;
      from_e4m3_row<T>(in.x, low.x, low.y);
      from_e4m3_row<T>(in.y, low.z, low.w);
      from_e4m3_row<T>(in.z, high.x, high.y);
      from_e4m3_row<T>(in.w, high.z, high.w);
      *reinterpret_cast<uint4*>(to + chunk_at<C::kRowBytes>(row, 2 * chunk)) = low;
      *reinterpret_cast<uint4*>(to + chunk_at<C::kRowBytes>(row, 2 * chunk + 1)) = high;
    }
  }

  __device__ __forceinline__ void scores_of(float (&s)[C::kFragments][2][4], std::uint32_t tile) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[f][0][e] = s[f][1][e] = 0;
    const RowSteps<C::kRowBytes> q_at(shared_address(shared + C::kQAt), row_half * 32 + lane % 16, lane / 16);
    const RowSteps<C::kRowBytes> k_at(tile, quarter * C::kWarpKeys + (lane & 7) + (lane / 16) * 8,
                                      (lane / 8) % 2);
#pragma unroll
    for (int step = 0; step < C::kQk / 16; ++step) {
      std::uint32_t a[C::kFragments][4], k[4];
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) load_matrix_4(a[f], q_at(step) + f * 16 * C::kRowBytes);
      load_matrix_4(k, k_at(step));
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) {
        T::mma(s[f][0], a[f], k[0], k[1]);
        T::mma(s[f][1], a[f], k[2], k[3]);
      }
    }
  }

  // Base-2 units, invisible keys -inf.
  __device__ __forceinline__ void shape_scores(float (&s)[C::kFragments][2][4], const Piece& piece, int tile,
                                               float factor) const {
    const RowTable table = rows();
    const std::int32_t tile_key = (piece.first_tile + tile) * kTileKeys;
    const bool hide = tile_key < piece.unit.full_begin || tile_key + kTileKeys > piece.unit.full_end;
    const float cap2 = p.softcap * kLog2e;
    const float inverse = 1.0f / cap2;
    const bool tree = p.step.tree_bits != nullptr && piece.unit.prefix == 0;
    const bool per_token = C::kE4m3 && p.scale_kind == 3;
    const int column = quarter * C::kWarpKeys + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint64_t word = ~std::uint64_t{0};
        if (hide) {
          const int row = row_of(f, half);
          word = interval_bits(table.begin[row] - tile_key, table.end[row] - tile_key);
          if (tree && row < piece.rows) {
            const std::int32_t query = (piece.unit.first_row + row) / p.ratio;
            word |= tree_word(p.step, piece.unit, query, tile_key);
          }
          word >>= column;
        }
#pragma unroll
        for (int b = 0; b < 2; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float x = s[f][b][half * 2 + e] * factor;
            if (per_token) x *= scales(tile)[column + b * 8 + e];
            if (p.softcap > 0) x = capped(x, cap2, inverse);
            s[f][b][half * 2 + e] = ((word >> (b * 8 + e)) & 1) != 0 ? x : -INFINITY;
          }
      }
  }

  // Weights of the warp's keys into shared memory; the sums so far shrink where a row's largest score grew.
  __device__ __forceinline__ void soften(float (&s)[C::kFragments][2][4], State& state, int tile) const {
    auto* tops = reinterpret_cast<float*>(shared + C::kTopsAt);
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = fmaxf(fmaxf(s[f][0][half * 2], s[f][0][half * 2 + 1]),
                          fmaxf(s[f][1][half * 2], s[f][1][half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (lane % 4 == 0) tops[quarter * C::kTileRows + row_of(f, half)] = top;
      }
    meet_row_half();
    const bool per_token = C::kE4m3 && p.scale_kind == 3;
    const int column = quarter * C::kWarpKeys + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      float shrink[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(f, half);
        float top = state.largest[f][half];
#pragma unroll
        for (int w = 0; w < 4; ++w) top = fmaxf(top, tops[w * C::kTileRows + row]);
        const float finite = top == -INFINITY ? 0.0f : top;
        shrink[half] = exp2_fast(state.largest[f][half] - finite);
        state.largest[f][half] = top;
        float sum = 0;
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          float x = exp2_fast(s[f][b][half * 2] - finite);
          float y = exp2_fast(s[f][b][half * 2 + 1] - finite);
          sum += x + y;
          if (per_token) {
            x *= scales(tile)[column + b * 8];
            y *= scales(tile)[column + b * 8 + 1];
          }
          const std::uint32_t at = chunk_at<kTileKeys * 2>(row, quarter * 2 + b) + lane % 4 * 4;
          *reinterpret_cast<std::uint32_t*>(shared + C::kWeightsAt + at) = T::pack(x, y);
        }
        state.total[f][half] = state.total[f][half] * shrink[half] + sum;
      }
      if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int b = 0; b < C::kWarpDims / 8; ++b)
#pragma unroll
          for (int e = 0; e < 4; ++e) state.sums[f][b][e] *= shrink[e / 2];
      }
    }
    meet_row_half();
  }

  __device__ __forceinline__ void add_values(State& state, std::uint32_t tile) const {
    const RowSteps<kTileKeys * 2> p_at(shared_address(shared + C::kWeightsAt), row_half * 32 + lane % 16,
                                       lane / 16);
    const RowSteps<C::kRowBytes> v_at(tile + quarter * C::kWarpDims * 2, lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      std::uint32_t a[C::kFragments][4];
#pragma unroll
      for (int f = 0; f < C::kFragments; ++f) load_matrix_4(a[f], p_at(step) + f * 16 * kTileKeys * 2);
#pragma unroll
      for (int group = 0; group < C::kWarpDims / 16; ++group) {
        std::uint32_t v[4];
        load_matrix_4_transposed(v, v_at(group) + step * 16 * C::kRowBytes);
#pragma unroll
        for (int f = 0; f < C::kFragments; ++f) {
          T::mma(state.sums[f][group * 2], a[f], v[0], v[1]);
          T::mma(state.sums[f][group * 2 + 1], a[f], v[2], v[3]);
        }
      }
    }
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
    const int slot = static_cast<int>(threadIdx.x) % kTileKeys;
    const int tile = static_cast<int>(threadIdx.x) / kTileKeys;
    for (int first = 0; first < C::kStages; first += C::kLookups) {
      if (tile >= first && tile < first + C::kLookups)
        look_up(piece, ask(p, piece, table, tile, slot), tile, slot);
      __syncthreads();
      if (first == 0) fetch(piece, 0);
      __syncthreads();
    }
    fetch_queries<C::kQk, C::kTileRows, C::kThreads, false>(p, piece, shared + C::kQAt);
  }

  // Stats of the piece's rows, [rows] at kStatsAt.
  __device__ RowStat* join_stats(State& state) const {
    auto* totals = reinterpret_cast<float*>(shared + C::kWeightsAt);  // [4][rows], the weights are done
    auto* stats = reinterpret_cast<RowStat*>(shared + C::kStatsAt);
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = state.total[f][half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (lane % 4 != 0) continue;
        totals[quarter * C::kTileRows + row_of(f, half)] = total;
        if (quarter == 0) stats[row_of(f, half)].x = state.largest[f][half];
      }
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < C::kTileRows; row += C::kThreads) {
      float total = 0;
      for (int w = 0; w < 4; ++w) total += totals[w * C::kTileRows + row];
      stats[row].y = total;
    }
    __syncthreads();
    return stats;
  }

  template <class F>
  __device__ __forceinline__ void each_sum(const State& state, F&& call) const {
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f)
#pragma unroll
      for (int b = 0; b < C::kWarpDims / 8; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          call(row_of(f, half), quarter * C::kWarpDims + b * 8 + lane % 4 * 2, state.sums[f][b][half * 2],
               state.sums[f][b][half * 2 + 1]);
  }

  __device__ void run_piece(const Piece& piece, std::int64_t part) const {
    start(piece);
    const float factor = p.scale * kLog2e * head_scale(p, p.k_scale, piece.head);
    const int slot = static_cast<int>(threadIdx.x);
    Ahead ahead;
    if (slot < kTileKeys) ahead = ask(p, piece, rows(), C::kStages, slot);
    State state;
#pragma unroll
    for (int f = 0; f < C::kFragments; ++f) {
      state.largest[f][0] = state.largest[f][1] = -INFINITY;
      state.total[f][0] = state.total[f][1] = 0;
#pragma unroll
      for (int b = 0; b < C::kWarpDims / 8; ++b)
#pragma unroll
        for (int e = 0; e < 4; ++e) state.sums[f][b][e] = 0;
    }
    for (int tile = 0; tile < piece.tiles; ++tile) {
      copy_wait<0>();
      __syncthreads();  // tile is here, and nobody reads the stage of tile - 1 any more
      fetch(piece, tile + 1);
      if constexpr (C::kE4m3) {
        widen(tile);
        __syncthreads();
      }
      float s[C::kFragments][2][4];
      scores_of(s, shared_address(tile_at(tile)));
      shape_scores(s, piece, tile, factor);
      soften(s, state, tile);
      add_values(state, shared_address(tile_at(tile)));
      // Last, since the scales of tile + kStages take the place of this tile's.
      if constexpr (C::kE4m3) __syncthreads();
      if (slot < kTileKeys) {
        look_up(piece, ahead, tile + C::kStages, slot);
        ahead = ask(p, piece, rows(), tile + C::kStages + 1, slot);
      }
    }
    copy_wait<0>();
    __syncthreads();
    RowStat* stats = join_stats(state);
    finish_piece<T>(
        p, piece, part, C::kTileRows, C::kV, stats, reinterpret_cast<float*>(shared + C::kFactorsAt),
        reinterpret_cast<std::int32_t*>(shared + C::kLastAt), [&](auto&& emit) { each_sum(state, emit); });
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) attend_latent(const __grid_constant__ RunParams p) {
  extern __shared__ __align__(128) char shared[];
  clear_idle_rows(p);
  const LatentAttend<C> attend(p, shared);
  Piece& piece = *reinterpret_cast<Piece*>(shared + C::kPieceAt);
  const std::int64_t part = blockIdx.x;
  for_each_piece(p, part, C::kTileRows, piece, [&] { attend.run_piece(piece, part); });
}

}  // namespace quire::attention::cuda
