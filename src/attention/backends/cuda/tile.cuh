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
// the low bits of the chunk only, so one register serves all steps: a few steps flip bits of it, and the rest
// is a constant that the instruction carries. `base` is a multiple of 128.
template <int kRowBytes>
struct RowSteps {
  static constexpr int kWays = kRowBytes % 128 == 0 ? 4 : 2;
  std::uint32_t first;
  // Rows a multiple of 8 further on have the same swizzle: add rows * kRowBytes.
  __device__ __forceinline__ RowSteps(std::uint32_t base, std::int32_t row, std::int32_t half)
      : first(base + chunk_at<kRowBytes>(row, half)) {}
  __device__ __forceinline__ std::uint32_t operator()(int step) const {
    return (first ^ static_cast<std::uint32_t>(step % kWays * 32)) +
           static_cast<std::uint32_t>(step / kWays * kWays * 32);
  }
};

// Where the rows of a tile lie. A key that nobody sees has an address too, which is not read.
struct Lookup {
  const char* k[kTileKeys];
  const char* v[kTileKeys];
  std::int64_t scale[kTileKeys];  // byte offset from k_scale and v_scale
  std::uint32_t live[2];          // bit of each key: it is to be read
};

// Where a part goes on.
struct Walk {
  std::int32_t unit;
  std::int32_t head;
  std::int32_t skip;    // places of the unit that earlier parts had
  std::int32_t places;  // left of the part
};

// A stretch of key tiles of one unit and KV head. Lies in shared memory: registers are for the products.
struct Piece {
  Walk next;
  Unit unit;
  std::int32_t head;        // KV head
  std::int32_t index;       // of the unit
  std::int32_t first_tile;  // absolute
  std::int32_t tiles;
  std::int32_t rows;   // packed rows that exist
  std::int32_t holes;  // 1: the union of the rows' keys need not be an interval
  // Of the head (and, dense, the sequence): what a page and a token add is the rest of an address.
  const char* k;
  const char* v;
  std::int64_t scale;
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
  if (piece.holes != 0) [[unlikely]] {
    if (!some_row_sees(p, piece, rows, key)) return ahead;
  }
  ahead.key = key;
  if (p.step.kv_offsets == nullptr) {
    const std::int32_t page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    ahead.page = __ldg(p.step.block_table + piece.unit.table_row * p.step.table_stride + page);
  }
  return ahead;
}

// Where K, or V and the scales, of the key lie. Whole warps call it, each for the 32 keys of one half of the
// tile.
__device__ __forceinline__ void answer(const RunParams& p, const Piece& piece, const Ahead& ahead,
                                       Lookup& lookup, std::int32_t slot, bool for_v) {
  const bool live = ahead.key >= 0;
  const std::uint32_t bits = __ballot_sync(0xffffffffu, live);
  std::uint32_t token = live ? static_cast<std::uint32_t>(ahead.key) : 0;
  if (p.step.kv_offsets == nullptr)
    token = p.page_shift >= 0 ? token & ((1u << p.page_shift) - 1)
                              : token % static_cast<std::uint32_t>(p.page_size);
  if (for_v) {
    lookup.v[slot] = piece.v + ahead.page * p.v_stride.page + token * p.v_stride.token;
    lookup.scale[slot] = piece.scale + ahead.page * p.scale_stride.page + token * p.scale_stride.token;
  } else {
    lookup.k[slot] = piece.k + ahead.page * p.k_stride.page + token * p.k_stride.token;
    if (slot % 32 == 0) lookup.live[slot / 32] = bits;
  }
}

// The same 4 bytes at a time, for caches whose pages do not begin at multiples of 16.
template <int kRowBytes, int kThreads>
__device__ __forceinline__ void fetch_words(std::uint32_t target, const char* const* rows,
                                            const std::uint32_t* live, std::int32_t live_bytes) {
  constexpr int kWords = kRowBytes / 4;
#pragma unroll 1
  for (int index = thread_again() % kThreads; index < kTileKeys * kWords; index += kThreads) {
    const int row = index / kWords;
    const int word = index % kWords;
    const bool read = ((live[row / 32] >> row % 32) & 1) != 0 && word * 4 < live_bytes;
    copy_async_4(target + chunk_at<kRowBytes>(row, word / 4) + word % 4 * 4, rows[row] + word * 4,
                 read ? 4 : 0);
  }
}

// 64 rows of K or V, `live_bytes` of each (a multiple of 16), the rest of kRowBytes zeros. A few neighbouring
// lanes take a segment of a row, 16 bytes each, and go along the row, so that a row is looked up once; rows a
// multiple of 8 apart have the same swizzle, so that all targets of a thread differ by constants.
template <int kRowBytes, int kThreads>
__device__ __forceinline__ void fetch_rows(std::uint32_t target, const char* const* rows,
                                           const std::uint32_t* live, std::int32_t live_bytes, bool aligned) {
  if (!aligned) [[unlikely]]
    return fetch_words<kRowBytes, kThreads>(target, rows, live, live_bytes);
  constexpr int kSegment = kRowBytes % 128 == 0 ? 128 : 64;
  constexpr int kLanes = kSegment / 16;
  constexpr int kRowStep = kThreads / kLanes;
  static_assert(kTileKeys % kRowStep == 0 && kRowStep % 8 == 0);
  const int thread = thread_again() % kThreads;
  const int chunk = thread % kLanes;
  const int first_row = thread / kLanes;
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(live[1]) << 32 | static_cast<std::uint64_t>(live[0])) >> first_row;
  target += chunk_at<kRowBytes>(first_row, chunk);
#pragma unroll
  for (int pass = 0; pass < kTileKeys / kRowStep; ++pass) {
    const char* source = rows[first_row + pass * kRowStep] + chunk * 16;
    const bool read = ((bits >> (pass * kRowStep)) & 1) != 0;
#pragma unroll
    for (int segment = 0; segment < kRowBytes / kSegment; ++segment) {
      copy_async_16(target + pass * kRowStep * kRowBytes + segment * kSegment, source + segment * kSegment,
                    read && chunk * 16 + segment * kSegment < live_bytes ? 16 : 0);
    }
  }
}

// fetch_rows() of K and V at once, where their rows are equally long and one segment: what is asked of a row
// is asked once, in few instructions. The kernels of many rows in bf16 have no registers for it.
template <int kRowBytes, int kThreads>
__device__ __forceinline__ void fetch_both(std::uint32_t k, std::uint32_t v, const Lookup& at,
                                           std::int32_t k_bytes, std::int32_t v_bytes) {
  constexpr int kLanes = kRowBytes / 16;
  constexpr int kRowStep = kThreads / kLanes;
  static_assert(kRowBytes <= 128 && 32 % kRowStep == 0 && kRowStep % 8 == 0);
  const int thread = thread_again_known() % kThreads;
  const int chunk = thread % kLanes;
  const int first_row = thread / kLanes;
  const std::uint32_t offset = chunk_at<kRowBytes>(first_row, chunk);
  const std::uint32_t k_mask = chunk * 16 < k_bytes ? 1u << first_row : 0;
  const std::uint32_t v_mask = chunk * 16 < v_bytes ? 1u << first_row : 0;
  const std::uint32_t live[2] = {at.live[0], at.live[1]};
#pragma unroll
  for (int row = 0; row < kTileKeys; row += kRowStep) {
    const std::uint32_t bits = live[row / 32] >> row % 32;
    const std::uint32_t target = offset + row * kRowBytes;
    copy_async_16(k + target, at.k[first_row + row] + chunk * 16, (bits & k_mask) != 0 ? 16 : 0);
    copy_async_16(v + target, at.v[first_row + row] + chunk * 16, (bits & v_mask) != 0 ? 16 : 0);
  }
}

// The scales of a tile's keys, where every token and head has its own. Those of keys that are not read become
// zeros.
__device__ __forceinline__ void fetch_scales(const RunParams& p, const Lookup& lookup, float* k_scales,
                                             float* v_scales) {
  const std::int32_t slot = static_cast<std::int32_t>(threadIdx.x) % kTileKeys;
  if (threadIdx.x >= 2 * kTileKeys) return;
  const bool k = threadIdx.x < kTileKeys;
  const bool read = ((lookup.live[slot / 32] >> slot % 32) & 1) != 0;
  copy_async_4(shared_address((k ? k_scales : v_scales) + slot),
               (k ? p.k_scale : p.v_scale) + lookup.scale[slot], read ? 4 : 0);
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
