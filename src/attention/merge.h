// merge: parts of one softmax into the whole. Any partition of the keys, empty parts included, gives the
// single-pass result. One implementation per platform, chosen by the stream's device.
#pragma once

#include <cstdint>
#include <span>

#include "platform/platform.h"

namespace quire::attention {

struct MergePart {
  const float* out = nullptr;  // [rows, heads, dim] dense float32
  const float* lse = nullptr;  // [rows, heads]
};

inline constexpr int kMaxMergeParts = 8;

struct MergeArgs {
  MergePart parts[kMaxMergeParts];
  int part_count = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  float* out = nullptr;  // row stride out_row_stride elements, heads dense; may alias part 0
  std::int64_t out_row_stride = 0;
  float* lse = nullptr;         // [rows, heads] of the union (no sink), or null; may alias part 0's
  const float* sink = nullptr;  // [heads], applied once here, or null
};

// Parts are merged in the order given; lse = -inf weighs nothing; a row empty in all parts gives 0 / -inf; a
// NaN lse makes the row NaN.
void merge(const MergeArgs& args, platform::Stream& stream);

}  // namespace quire::attention
