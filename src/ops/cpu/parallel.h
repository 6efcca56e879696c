// Sharing the rows of an operation among the team. Rows do not depend on each other, so the cut is free.
#pragma once

#include <algorithm>
#include <cstdint>

#include "platform/cpu/stream.h"
#include "tensor/tensor_view.h"

namespace quire::ops::cpu {

// Below this many element operations the worker does it alone: at a few operations a nanosecond that is one
// or two microseconds, about what handing work to threads that are awake costs. An estimate, not a
// measurement.
inline constexpr std::int64_t kAloneWork = 8192;

// f(row, thread) for every row; `cost`: element operations of one row.
template <class F>
void for_rows(platform::cpu::Team& team, std::int64_t rows, std::int64_t cost, F&& f) {
  if (rows * cost <= kAloneWork || rows == 1) {
    for (std::int64_t row = 0; row < rows; ++row) f(row, 0);
    return;
  }
  const std::int64_t piece = std::max<std::int64_t>(1, kAloneWork / 2 / std::max<std::int64_t>(1, cost));
  team.for_each((rows + piece - 1) / piece, [&](std::int64_t item, int thread) {
    const std::int64_t end = std::min(rows, (item + 1) * piece);
    for (std::int64_t row = item * piece; row < end; ++row) f(row, thread);
  });
}

inline float* row_of(const TensorView& view, std::int64_t row) {
  return static_cast<float*>(view.data) + row * view.stride[0];
}
// Of a rank-3 view.
inline float* head_of(const TensorView& view, std::int64_t row, std::int64_t head) {
  return static_cast<float*>(view.data) + row * view.stride[0] + head * view.stride[1];
}
// A matrix of float32 whose rows are contiguous.
inline bool is_matrix(const TensorView& view) {
  return view.data != nullptr && view.dtype == DType::f32 && view.rank == 2 && view.stride[1] == 1;
}
inline bool is_heads(const TensorView& view) {
  return view.data != nullptr && view.dtype == DType::f32 && view.rank == 3 && view.stride[2] == 1;
}

}  // namespace quire::ops::cpu
