// How tiles of keys come into shared memory: page ids are looked up one tile ahead, rows are fetched 16 bytes
// per thread with their own addresses (so any page size, order and stride will do), and keys that no row of
// the unit sees become zeros without being read. Rows lie swizzled so that ldmatrix meets no bank twice.
#pragma once

#include "attention/backends/cuda/mma.cuh"
#include "attention/backends/cuda/rows.cuh"

namespace quire::attention::cuda {

// Byte offset of 16-byte chunk `chunk` of row `row`. Rows are a multiple of 64 bytes long.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t chunk_at(std::int32_t row, std::int32_t chunk) {
  static_assert(kRowBytes % 64 == 0);
  const std::int32_t twist = kRowBytes % 128 == 0 ? row & 7 : (row >> 1) & 3;
  return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ twist) << 4));
}

// Addresses of ldmatrix along a row, 32 bytes a step: chunk 2 * step + half of one row. The swizzle touches
// the low bits of the chunk only, so a few offsets serve all steps and the rest is a constant that the
// instruction carries.
template <int kRowBytes>
struct RowSteps {
  static constexpr int kWays = kRowBytes % 128 == 0 ? 4 : 2;
  std::uint32_t at[kWays];
  // Rows a multiple of 8 further on have the same swizzle: add rows * kRowBytes.
  __device__ __forceinline__ RowSteps(std::uint32_t base, std::int32_t row, std::int32_t half) {
#pragma unroll
    for (int way = 0; way < kWays; ++way) at[way] = base + chunk_at<kRowBytes>(row, 2 * way + half);
  }
  __device__ __forceinline__ std::uint32_t operator()(int step) const {
    return at[step % kWays] + static_cast<std::uint32_t>(step / kWays * kWays * 32);
  }
};

// Where the rows of a tile lie, as byte offsets; bit 0 says that the row is to be read (offsets are multiples
// of 4).
struct Lookup {
  std::int64_t k[kTileKeys];
  std::int64_t v[kTileKeys];
  std::int64_t scale[kTileKeys];
};

// A stretch of key tiles of one unit and KV head. Lies in shared memory: registers are for the products.
struct Piece {
  Unit unit;
  std::int32_t head;        // KV head
  std::int32_t index;       // of the unit
  std::int32_t first_tile;  // absolute
  std::int32_t tiles;
  std::int32_t rows;   // packed rows that exist
  std::int32_t holes;  // 1: the union of the rows' keys need not be an interval
};

// One row of the block's shared row table.
struct RowTable {
  std::int32_t* begin;
  std::int32_t* end;
};

// Whether some row of the unit sees a key, where the union has holes.
__device__ inline bool some_row_sees(const RunParams& p, const Piece& piece, const RowTable& rows,
                                     std::int32_t key) {
  const Unit& u = piece.unit;
  const bool tree = p.step.tree_bits != nullptr;
  const std::int32_t node = tree ? key - p.step.tree_base[u.table_row] : -1;
  const bool in_tree = node >= 0;
  if (in_tree && (key < u.clamp_begin || key >= u.clamp_end || node >= 64 * p.step.tree_words)) return false;
  std::int32_t r = 0;
  while (r < piece.rows) {
    const std::int32_t query = (u.first_row + r) / p.ratio;
    if (in_tree) {
      const std::uint64_t* bits =
          p.step.tree_bits + static_cast<std::int64_t>(u.q_begin + query) * p.step.tree_words;
      if ((bits[node / 64] >> (node % 64)) & 1) return true;
    } else if (key >= rows.begin[r] && key < rows.end[r]) {
      return true;
    }
    r = (query + 1) * p.ratio - u.first_row;
  }
  return false;
}

// The key of a tile that one thread looks up: its page id is asked for a tile before it is needed.
struct Ahead {
  std::uint32_t page = 0;
  std::int32_t key = -1;  // -1: not to be read
};

__device__ __forceinline__ Ahead ask(const RunParams& p, const Piece& piece, const RowTable& rows,
                                     std::int32_t tile, std::int32_t slot) {
  Ahead ahead;
  const std::int32_t key = (piece.first_tile + tile) * kTileKeys + slot;
  if (tile >= piece.tiles || key < piece.unit.key_begin || key >= piece.unit.key_end) return ahead;
  if (piece.holes != 0 && !some_row_sees(p, piece, rows, key)) return ahead;
  ahead.key = key;
  if (p.step.kv_offsets == nullptr) {
    const std::int32_t page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    ahead.page = __ldg(p.step.block_table + piece.unit.table_row * p.step.table_stride + page);
  }
  return ahead;
}

// Where K, or V and the scales, of the key lie.
__device__ __forceinline__ void answer(const RunParams& p, const Piece& piece, const Ahead& ahead,
                                       Lookup& lookup, std::int32_t slot, bool for_v) {
  std::int64_t at = 0;
  std::int64_t scale_at = 0;
  if (ahead.key >= 0) {
    std::uint32_t page = 0;
    std::int64_t token = 0;
    if (p.step.kv_offsets != nullptr) {
      token = p.step.kv_offsets[piece.unit.table_row] + ahead.key;
    } else {
      page = ahead.page;
      token = p.page_shift >= 0 ? ahead.key & ((1 << p.page_shift) - 1) : ahead.key % p.page_size;
    }
    const Strides& stride = for_v ? p.v_stride : p.k_stride;
    at = (page * stride.page + piece.head * stride.head + token * stride.token) | 1;
    if (for_v && p.scale_kind == 3)
      scale_at = page * p.scale_stride.page + piece.head * p.scale_stride.head + token * p.scale_stride.token;
  }
  if (for_v) {
    lookup.v[slot] = at;
    lookup.scale[slot] = scale_at;
  } else {
    lookup.k[slot] = at;
  }
}

// The same 4 bytes at a time, for caches whose pages do not begin at multiples of 16.
template <int kRowBytes, int kThreads>
__device__ __forceinline__ void fetch_words(std::uint32_t target, const char* base,
                                            const std::int64_t* offsets, std::int32_t live_bytes) {
  constexpr int kWords = kRowBytes / 4;
#pragma unroll 1
  for (int index = static_cast<int>(threadIdx.x); index < kTileKeys * kWords; index += kThreads) {
    const int row = index / kWords;
    const int word = index % kWords;
    const std::int64_t offset = offsets[row];
    const bool read = (offset & 1) != 0 && word * 4 < live_bytes;
    const char* source = read ? base + (offset & ~std::int64_t{1}) + word * 4 : base;
    copy_async_4(target + chunk_at<kRowBytes>(row, word / 4) + word % 4 * 4, source, read ? 4 : 0);
  }
}

// 64 rows of K or V, `live_bytes` of each (a multiple of 16), the rest of kRowBytes zeros. A few neighbouring
// lanes take a segment of a row, 16 bytes each, and go along the row, so that a row is looked up once; rows a
// multiple of 8 apart have the same swizzle, so that all targets of a thread differ by constants.
template <int kRowBytes, int kThreads>
__device__ __forceinline__ void fetch_rows(std::uint32_t target, const char* base,
                                           const std::int64_t* offsets, std::int32_t live_bytes,
                                           bool aligned) {
  if (!aligned) return fetch_words<kRowBytes, kThreads>(target, base, offsets, live_bytes);
  constexpr int kSegment = kRowBytes % 128 == 0 ? 128 : 64;
  constexpr int kLanes = kSegment / 16;
  constexpr int kRowStep = kThreads / kLanes;
  static_assert(kTileKeys % kRowStep == 0 && kRowStep % 8 == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kLanes;
  const int first_row = static_cast<int>(threadIdx.x) / kLanes;
  target += chunk_at<kRowBytes>(first_row, chunk);
  base += chunk * 16;
  live_bytes -= chunk * 16;
#pragma unroll
  for (int pass = 0; pass < kTileKeys / kRowStep; ++pass) {
    const std::int64_t offset = offsets[first_row + pass * kRowStep];
    const char* source = base + (offset & ~std::int64_t{1});
    const std::int32_t live = (offset & 1) != 0 ? live_bytes : 0;
#pragma unroll
    for (int segment = 0; segment < kRowBytes / kSegment; ++segment) {
      copy_async_16(target + pass * kRowStep * kRowBytes + segment * kSegment, source + segment * kSegment,
                    segment * kSegment < live ? 16 : 0);
    }
  }
}

// The scales of a tile's keys, where every token and head has its own.
__device__ __forceinline__ void fetch_scales(const RunParams& p, const Lookup& lookup, float* k_scales,
                                             float* v_scales) {
  const std::int32_t slot = static_cast<std::int32_t>(threadIdx.x) % kTileKeys;
  if (threadIdx.x >= 2 * kTileKeys) return;
  const bool k = threadIdx.x < kTileKeys;
  const bool live = lookup.k[slot] != 0;
  const char* base = k ? p.k_scale : p.v_scale;
  copy_async_4(shared_address((k ? k_scales : v_scales) + slot), live ? base + lookup.scale[slot] : base,
               live ? 4 : 0);
}

// Rows of q into shared memory, zeros for rows that do not exist. For e4m3 keys the dims of every 16 are
// permuted to the order in which a thread finds them in a row of bytes: pair u of 8 goes to (u % 2) * 4 + u
// / 2.
template <int kDim, int kTileRows, int kThreads, bool kPermute>
__device__ __forceinline__ void fetch_queries(const RunParams& p, const Piece& piece, char* target) {
  constexpr int kChunks = kDim / 8;
  for (int index = static_cast<int>(threadIdx.x); index < kTileRows * kChunks; index += kThreads) {
    const int row = index / kChunks;
    const int chunk = index % kChunks;
    uint4 words = {0, 0, 0, 0};
    if (row < piece.rows && chunk * 8 < p.qk_dim) {
      const std::int32_t packed = piece.unit.first_row + row;
      const std::int64_t q_row = piece.unit.q_begin + packed / p.ratio;
      const std::int64_t q_head = piece.head * p.ratio + packed % p.ratio;
      const char* source = p.q + (q_row * p.q_row_stride + q_head * p.q_head_stride + chunk * 8) * 2;
      if (p.q_aligned) {
        words = *reinterpret_cast<const uint4*>(source);
      } else {
        const auto* halves = reinterpret_cast<const std::uint16_t*>(source);
        words.x = halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
        words.y = halves[2] | static_cast<std::uint32_t>(halves[3]) << 16;
        words.z = halves[4] | static_cast<std::uint32_t>(halves[5]) << 16;
        words.w = halves[6] | static_cast<std::uint32_t>(halves[7]) << 16;
      }
    }
    if (!kPermute) {
      *reinterpret_cast<uint4*>(target + chunk_at<kDim * 2>(row, chunk)) = words;
      continue;
    }
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 4; ++i) {
      const int u = chunk % 2 * 4 + i;
      const int to = u % 2 * 4 + u / 2;
      const std::uint32_t at = chunk_at<kDim * 2>(row, chunk / 2 * 2 + to / 4) + to % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(target + at) = pairs[i];
    }
  }
}

}  // namespace quire::attention::cuda
