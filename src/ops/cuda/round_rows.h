// Activation rows as products with e4m3 weights take them, with one scale a row: in e4m3, which is what
// RowRounding::e4m3 does on a CUDA device, or in f16.
#pragma once

#include <cstdint>

#include "platform/platform.h"
#include "tensor/tensor_view.h"

namespace quire::ops::cuda {

// Row r is values[r * cols + c] * scales[r], dense. Device memory, borrowed.
struct RoundedRows {
  void* values = nullptr;   // [rows, cols]; cols is a multiple of 16
  float* scales = nullptr;  // [rows]
  DType type = DType::fp8_e4m3;
};

// e4m3: scales[r] = the largest magnitude of x's row r / 448 (at least 2^-126, so that rows of zeros stay
// zeros), values = x * (1 / scale), rounded to nearest even. A row that holds NaN or an infinity gets the
// scale NaN. f16: the scales are powers of two, and nothing is lost of a bf16 row but under 2^-38 of its
// largest (row_scale.cuh). x: f32, bf16 or f16. No host read; one launch.
void round_rows(const TensorView& x, const RoundedRows& to, platform::Stream& stream);

}  // namespace quire::ops::cuda
