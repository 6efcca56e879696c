// TensorView: a borrowed, strided view of activations. Plain data; owns nothing, does no arithmetic.
// Strides are in elements. Rank is 1 to 4; unused trailing shape entries are 1.
#pragma once

#include <array>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::array<std::int64_t, 4> stride{0, 0, 0, 0};

  std::int64_t rows() const { return shape[0]; }
  std::int64_t cols() const { return shape[1]; }

  // [rows, cols], rows `row_stride` elements apart (0 = dense).
  static TensorView matrix(void* data, DType dtype, std::int64_t rows, std::int64_t cols,
                           std::int64_t row_stride = 0) {
    return TensorView{data, dtype, 2, {rows, cols, 1, 1}, {row_stride ? row_stride : cols, 1, 0, 0}};
  }
  // [rows, heads, dim], dense.
  static TensorView heads(void* data, DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return TensorView{data, dtype, 3, {rows, heads, dim, 1}, {heads * dim, dim, 1, 0}};
  }
  // Rows [begin, begin + count) of the first axis.
  TensorView rows_slice(std::int64_t begin, std::int64_t count) const {
    QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[0], "begin={} count={} rows={}", begin,
                count, shape[0]);
    TensorView part = *this;
    part.data = static_cast<char*>(data) + begin * stride[0] * static_cast<std::int64_t>(dtype_bytes(dtype));
    part.shape[0] = count;
    return part;
  }
  // Columns [begin, begin + count) of the second axis of a matrix.
  TensorView cols_slice(std::int64_t begin, std::int64_t count) const {
    QUIRE_CHECK(rank == 2 && begin >= 0 && count >= 0 && begin + count <= shape[1],
                "begin={} count={} cols={}", begin, count, shape[1]);
    TensorView part = *this;
    part.data = static_cast<char*>(data) + begin * stride[1] * static_cast<std::int64_t>(dtype_bytes(dtype));
    part.shape[1] = count;
    return part;
  }
  // The same rows seen as [rows, heads, cols / heads].
  TensorView split_heads(std::int64_t heads) const {
    QUIRE_CHECK(rank == 2 && heads > 0 && shape[1] % heads == 0, "cols={} heads={}", shape[1], heads);
    const std::int64_t dim = shape[1] / heads;
    return TensorView{data, dtype, 3, {shape[0], heads, dim, 1}, {stride[0], dim * stride[1], stride[1], 0}};
  }
};

}  // namespace quire
