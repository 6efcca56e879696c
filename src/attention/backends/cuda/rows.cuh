// Which keys a row sees (attention/contract.h), as the plan and every kernel compute it.
#pragma once

#include <cstdint>

#include "attention/backends/cuda/step.h"

namespace quire::attention::cuda {

// Values of MaskKind, which device code does not include.
inline constexpr std::int32_t kCausal = 0;
inline constexpr std::int32_t kWindow = 1;
inline constexpr std::int32_t kChunked = 2;
inline constexpr std::int32_t kFull = 3;
inline constexpr std::int32_t kRows = 4;

// One row: an interval and, where there is a tree, bits for the keys from tree_base on.
struct RowKeys {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// `query` is the row within the sequence. With a tree the interval is what it says of keys below tree_base.
__device__ __forceinline__ RowKeys row_keys(const Step& s, const Unit& unit, std::int32_t query) {
  if (unit.prefix != 0) return {unit.key_begin, unit.key_end};
  const std::int32_t row = unit.q_begin + query;
  std::int32_t p = unit.kv_len - unit.q_len + query;
  std::int32_t last = unit.clamp_end;
  if (s.tree_bits != nullptr) {
    const std::int32_t base = s.tree_base[unit.table_row];
    p = base + s.tree_depth[row];
    last = min(last, base);
  }
  RowKeys keys{0, p + 1};
  switch (s.mask) {
    case kWindow:
      keys.begin = p - s.mask_width + 1;
      break;
    case kChunked:
      keys.begin = p < 0 ? 0 : p / s.mask_width * s.mask_width;
      break;
    case kFull:
      keys.end = unit.kv_len;
      break;
    case kRows:
      keys = {s.row_begin[row], s.row_end[row]};
      break;
    default:
      break;
  }
  return {max(keys.begin, unit.clamp_begin), min(keys.end, last)};
}

// Bits [begin, end) of a word, the bounds anywhere.
__device__ __forceinline__ std::uint64_t interval_bits(std::int32_t begin, std::int32_t end) {
  begin = max(begin, 0);
  end = min(end, 64);
  if (begin >= end) return 0;
  return (~std::uint64_t{0} >> (64 - (end - begin))) << begin;
}

// Keys [tile_key, tile_key + 64) that the tree bits of a row show, within the clamp.
__device__ inline std::uint64_t tree_word(const Step& s, const Unit& unit, std::int32_t query,
                                          std::int32_t tile_key) {
  const std::uint64_t* bits = s.tree_bits + static_cast<std::int64_t>(unit.q_begin + query) * s.tree_words;
  const std::int32_t node = tile_key - s.tree_base[unit.table_row];
  std::uint64_t word = 0;
  if (node <= -64) return 0;
  if (node < 0) {
    word = bits[0] << -node;
  } else {
    const std::int32_t at = node / 64;
    const std::int32_t shift = node % 64;
    if (at < s.tree_words) word = bits[at] >> shift;
    if (shift != 0 && at + 1 < s.tree_words) word |= bits[at + 1] << (64 - shift);
  }
  return word & interval_bits(unit.clamp_begin - tile_key, unit.clamp_end - tile_key);
}

// Whether the keys that several rows see together need not be an interval.
__device__ __forceinline__ bool may_have_holes(const Step& s) {
  return s.tree_bits != nullptr || s.mask == kRows;
}

// Key tiles of a unit; one for a unit without keys, whose rows must be written all the same.
__device__ __forceinline__ std::int32_t tiles_of(const Unit& u) {
  return max(1, (u.key_end + kTileKeys - 1) / kTileKeys - u.key_begin / kTileKeys);
}

// The keys that the rows of queries [first, last] of a unit see together; for rows and trees this may have
// holes.
__device__ inline RowKeys union_keys(const Step& s, const Unit& unit, std::int32_t first, std::int32_t last) {
  const RowKeys low = row_keys(s, unit, first);
  const RowKeys high = row_keys(s, unit, last);
  if (!may_have_holes(s)) return {low.begin, high.end};  // both bounds grow with the query
  RowKeys all{0x7fffffff, 0};
  for (std::int32_t query = first; query <= last; ++query) {
    const RowKeys keys = row_keys(s, unit, query);
    if (keys.begin >= keys.end) continue;
    all = {min(all.begin, keys.begin), max(all.end, keys.end)};
  }
  if (s.tree_bits != nullptr) {
    const std::int32_t base = s.tree_base[unit.table_row];
    const RowKeys tree{max(base, unit.clamp_begin), min(base + 64 * s.tree_words, unit.clamp_end)};
    if (tree.begin < tree.end) all = {min(all.begin, tree.begin), max(all.end, tree.end)};
  }
  return all.begin < all.end ? all : RowKeys{0, 0};
}

}  // namespace quire::attention::cuda
