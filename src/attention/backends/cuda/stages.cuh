// The ring of key tiles in shared memory that the attention kernels with K and V of their own walk: which
// rows the tiles have, where they lie, and the copies that bring them, a few tiles ahead of the products.
#pragma once

#include "attention/backends/cuda/finish.cuh"

namespace quire::attention::cuda {

// Sizes of a kernel's tiles and where they lie in shared memory.
template <class T_, bool kE4m3_, int kQk_, int kV_, int kTileRows_, int kThreads_, int kStages_>
struct TileConfig {
  using T = T_;                          // of q and out
  static constexpr bool kE4m3 = kE4m3_;  // K and V are e4m3, else T
  static constexpr int kQk = kQk_;       // head dims as compiled
  static constexpr int kV = kV_;
  static constexpr int kTileRows = kTileRows_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kStages = kStages_;

  static constexpr int kKBytes = kQk * (kE4m3 ? 1 : 2);
  static constexpr int kVBytes = kV * (kE4m3 ? 1 : 2);
  static constexpr int kStageBytes = kTileKeys * (kKBytes + kVBytes);
  static constexpr int kLookups = kStages + 1;  // tiles whose rows are kept

  static constexpr int kQAt = 0;
  static constexpr int kStagesAt = kQAt + kTileRows * kQk * 2;
  static constexpr int kScalesAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kLookupsAt = kScalesAt + (kE4m3 ? kStages * 2 * kTileKeys * 4 : 0);
  static constexpr int kRowsAt = kLookupsAt + kLookups * static_cast<int>(sizeof(Lookup));
  static constexpr int kStatsAt = kRowsAt + 2 * kTileRows * 4;
  static constexpr int kFactorsAt = kStatsAt + kTileRows * 8;
  static constexpr int kLastAt = kFactorsAt + kTileRows * 4;
  static constexpr int kPieceAt = kLastAt + 16;
  static constexpr int kTilesEnd = kPieceAt + static_cast<int>(sizeof(Piece));
  static_assert(kLookupsAt % 8 == 0 && kStatsAt % 8 == 0 && kPieceAt % 8 == 0 && kTilesEnd % 8 == 0);
};

template <class C>
struct Stages {
  const RunParams& p;
  char* shared;

  __device__ RowTable rows() const {
    auto* begin = reinterpret_cast<std::int32_t*>(shared + C::kRowsAt);
    return {begin, begin + C::kTileRows};
  }
  __device__ Lookup& lookup(int tile) const {
    return reinterpret_cast<Lookup*>(shared + C::kLookupsAt)[tile % C::kLookups];
  }
  // e4m3: of K, then of V
  __device__ float* scales(int tile) const {
    return reinterpret_cast<float*>(shared + C::kScalesAt) + tile % C::kStages * 2 * kTileKeys;
  }
  __device__ std::uint32_t k(int tile) const {
    return shared_address(shared + C::kStagesAt + tile % C::kStages * C::kStageBytes);
  }
  __device__ std::uint32_t v(int tile) const { return k(tile) + kTileKeys * C::kKBytes; }

  __device__ __forceinline__ void fetch(const Piece& piece, bool per_token, int tile) const {
    if (tile < piece.tiles) {
      const Lookup& at = lookup(tile);
      const std::int32_t k_bytes = p.qk_dim * (C::kE4m3 ? 1 : 2);
      const std::int32_t v_bytes = p.v_dim * (C::kE4m3 ? 1 : 2);
      bool both = false;
      if constexpr (C::kE4m3 && C::kKBytes == C::kVBytes && C::kKBytes <= 128) {
        both = p.kv_aligned;
        if (both) fetch_both<C::kKBytes, C::kThreads>(k(tile), v(tile), at, k_bytes, v_bytes);
      }
      if (!both) {
        fetch_rows<C::kKBytes, C::kThreads>(k(tile), at.k, at.live, k_bytes, p.kv_aligned);
        fetch_rows<C::kVBytes, C::kThreads>(v(tile), at.v, at.live, v_bytes, p.kv_aligned);
      }
      if (C::kE4m3 && per_token) fetch_scales(p, at, scales(tile), scales(tile) + kTileKeys);
    }
    copy_commit();  // one group per tile, empty ones too, so that counting them stays simple
  }

  // Every thread calls it: afterwards tile `tile` is here and tile + kStages - 1 on its way.
  __device__ __forceinline__ void advance(const Piece& piece, bool per_token, int tile) const {
    copy_wait<C::kStages - 2>();
    __syncthreads();  // tile is here, and nobody reads the stage of tile - 1 any more
    fetch(piece, per_token, tile + C::kStages - 1);
  }

  // Of the rows, at the end of a piece.
  __device__ RowStat* stats() const { return reinterpret_cast<RowStat*>(shared + C::kStatsAt); }

  // finish_piece() of these tiles; stats() are complete.
  template <class Each>
  __device__ __forceinline__ void finish(const Piece& piece, std::int64_t part, Each&& each) const {
    finish_piece<typename C::T>(p, piece, part, C::kTileRows, C::kV, stats(),
                                reinterpret_cast<float*>(shared + C::kFactorsAt),
                                reinterpret_cast<std::int32_t*>(shared + C::kLastAt), SameWay(), each);
  }

  // Rows of the unit, the first tiles' lookups and copies, and q. Q is there after the next __syncthreads().
  __device__ void start(const Piece& piece, bool per_token) const {
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
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < C::kStages - 1; ++tile) fetch(piece, per_token, tile);
    fetch_queries<C::kQk, C::kTileRows, C::kThreads, C::kE4m3>(p, piece, shared + C::kQAt);
  }
};

// Looks up the rows of tile + kStages while the products of `tile` run: the page id was asked for a tile
// before that. Two warps look up K, two V, so that none is late.
template <class C>
struct LookAhead {
  const Stages<C>& stages;
  Ahead ahead;

  __device__ __forceinline__ LookAhead(const Stages<C>& s, const Piece& piece) : stages(s) {
    const int thread = thread_again();
    if (thread < 2 * kTileKeys) ahead = ask(s.p, piece, s.rows(), C::kStages, thread % kTileKeys);
  }
  __device__ __forceinline__ void step(const Piece& piece, int tile) {
    const int thread = thread_again();
    if (thread >= 2 * kTileKeys) return;
    const int slot = thread % kTileKeys;
    answer(stages.p, piece, ahead, stages.lookup(tile + C::kStages), slot, thread >= kTileKeys);
    ahead = ask(stages.p, piece, stages.rows(), tile + C::kStages + 1, slot);
  }
};

// How scores become base-2 units, for one piece.
struct ScoreRule {
  float factor = 1;        // scale * log2(e) with K's scale
  float cap = 0;           // softcap, 0: none
  bool per_token = false;  // K and V have scales per token
};

template <class C>
__device__ __forceinline__ ScoreRule score_rule(const RunParams& p, const Piece& piece) {
  ScoreRule rule;
  rule.per_token = C::kE4m3 && p.scale_kind == 3;
  rule.factor = p.scale * kLog2e * head_scale(p, p.k_scale, piece.head);
  rule.cap = p.softcap;
  return rule;
}

// Bits of the keys [tile_key, tile_key + 64) that a row of the unit sees.
__device__ __forceinline__ std::uint64_t seen_bits(const RunParams& p, const Piece& piece,
                                                   const RowTable& table, std::int32_t row,
                                                   std::int32_t tile_key) {
  std::uint64_t word = interval_bits(table.begin[row] - tile_key, table.end[row] - tile_key);
  if (p.step.tree_bits != nullptr && piece.unit.prefix == 0 && row < piece.rows) [[unlikely]] {
    const std::int32_t query = (piece.unit.first_row + row) / p.ratio;
    word |= tree_word(p.step, piece.unit, query, tile_key);
  }
  return word;
}

// How much a score may grow over the largest that the sums are relative to before they are scaled down: 2^8
// times a weight of 1 is far from the end of f16, and most tiles then need no new largest score.
inline constexpr float kSlack = 8;

// The largest score of a row without keys so far: finite, so that it can be taken off scores like any other.
inline constexpr float kNoScore = -1.5e38f;

__device__ __forceinline__ RowStat stat_of(float largest, float total) {
  return {largest == kNoScore ? -INFINITY : largest, total};
}

}  // namespace quire::attention::cuda
