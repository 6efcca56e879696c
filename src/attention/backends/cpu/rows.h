// Which keys a row sees (attention/contract.h, Mathematics), in the two forms that the cpu row needs: a
// range that holds all of them, for planning, and one bit per key of a tile, for computing.
#pragma once

#include <cstdint>

#include "attention/contract.h"

namespace quire::attention::cpu {

struct KeySpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;  // begin >= end: none
};

struct RowView {
  KeySpan interval;  // cut to the part, to [0, kv_len) and, under a tree, to keys below its base
  KeySpan cut;       // what the part and kv_len leave of tree keys
  std::int32_t tree_base = 0;
  std::int32_t tree_words = 0;
  const std::uint64_t* tree_bits = nullptr;  // [tree_words], null: no overlay
};

// Row `row` (counted inside the sequence) of sequence `sequence`. Reads lengths and mask data: call it on
// the stream.
RowView row_view(const StepShape& shape, std::int32_t sequence, std::int32_t row);

// The smallest span that holds every visible key.
KeySpan hull(const RowView& view);
// The same over rows [row, row + rows) of a sequence.
KeySpan hull(const StepShape& shape, std::int32_t sequence, std::int32_t row, std::int32_t rows);

// Bit j: key first + j is visible. `first` is a multiple of 64.
std::uint64_t tile_mask(const RowView& view, std::int32_t first);

}  // namespace quire::attention::cpu
