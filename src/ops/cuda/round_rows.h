// Activation rows rounded to e4m3 with one scale a row: what RowRounding::e4m3 does on a CUDA device.
#pragma once

#include <cstdint>

#include "platform/platform.h"
#include "tensor/tensor_view.h"

namespace quire::ops::cuda {

// Row r is values[r * cols + c] * scales[r], dense. Device memory, borrowed.
struct RoundedRows {
  std::uint8_t* values = nullptr;  // [rows, cols]; cols is a multiple of 16
  float* scales = nullptr;         // [rows]
};

// scales[r] = the largest magnitude of x's row r / 448 (at least 2^-126, so that rows of zeros stay zeros),
// values = x * (1 / scale), rounded to nearest even. A row that holds NaN or an infinity gets the scale NaN.
// x: f32, bf16 or f16. No host read; one launch.
void round_rows(const TensorView& x, const RoundedRows& to, platform::Stream& stream);

}  // namespace quire::ops::cuda
