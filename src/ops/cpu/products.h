// The table of products: for every weight format that `linear` multiplies, how activations are rounded,
// which library function multiplies, and how exact the result is.
//
// Every output element is one sum over the columns in one fixed order, whichever tile computes it: a row's
// bits do not depend on the other rows (tested for every format, shape class and instruction set).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/cpu/row_kernels.h"
#include "ops/cpu/row_math.h"
#include "ops/ops.h"
#include "tensor/weight.h"

namespace quire::ops::cpu {

// How a product wants its activations.
enum class ActivationFormat : std::uint8_t { f32, q8_0, q8_1, q8_k };
// Bytes of `cols` activations, and the number that cols must be a multiple of.
std::int64_t activation_row_bytes(ActivationFormat format, std::int64_t cols);

struct Product {
  WeightFormat format;
  ActivationFormat activation;
  VecDot dot;
  Dequantise dequantise;
  // ggml's float32 tile multiplies whole groups of kTileRows weight rows where cols is a multiple of this; 0:
  // never.
  std::int64_t tile_cols = 0;
  // The weights are dequantised a panel of rows at a time, into the first cache level, and multiplied in
  // float32: activations are never rounded.
  bool panels = false;
  // Four packed rows by one activation row, with the bits of a tiled panel; null: through the panel.
  RowMath::DotFour dot_four = nullptr;
};

inline constexpr std::int64_t kTileRows = 4;
// A panel: so many weight rows of `cols` values that they stay in the first cache level; a multiple of the
// tile's four rows.
inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kPanelBytes = 16 << 10;
inline std::int64_t panel_rows(std::int64_t cols) {
  return std::clamp<std::int64_t>(kPanelBytes / 4 / std::max<std::int64_t>(1, cols) / 4 * 4, 4, kPanelRows);
}

class ProductTable {
 public:
  explicit ProductTable(platform::cpu::Isa isa);
  const RowKernels& kernels() const { return *kernels_; }
  // Null: this format is not multiplied.
  const Product* find(WeightFormat format) const;
  std::span<const LinearFormat> formats() const { return {formats_, static_cast<std::size_t>(count_)}; }

  // Rounds one row to what the product wants. Not for f32, which is used where it lies.
  void round_row(ActivationFormat format, const float* x, void* y, std::int64_t cols) const;

  // y[j * y_stride + i] = product of weight row i and activation row j, for i in [0, rows) and j in [0,
  // count). Activation rows lie activation_stride bytes apart. `panel`: the thread's own memory for
  // panel_rows(cols) * cols floats, aligned to 64 bytes.
  void multiply(const Product& product, const void* weight, std::int64_t row_bytes, std::int64_t rows,
                std::int64_t cols, const void* activation, std::int64_t activation_stride, std::int64_t count,
                float* y, std::int64_t y_stride, float* panel) const;

 private:
  static constexpr int kMaxFormats = 20;
  void add(const Product& product, std::string_view library, std::string_view activation);
  void add_panels(WeightFormat format, Dequantise dequantise, RowMath::DotFour RowMath::*dot_four);
  void add_floats(platform::cpu::Isa isa);
  void add_blocks();
  void multiply_packed(const Product& product, const char* weight, std::int64_t row_bytes, std::int64_t rows,
                       std::int64_t cols, const char* activation, std::int64_t activation_stride,
                       std::int64_t count, float* y, std::int64_t y_stride) const;
  void multiply_dots(const Product& product, const char* weight, std::int64_t row_bytes, std::int64_t rows,
                     std::int64_t cols, const char* activation, std::int64_t activation_stride,
                     std::int64_t count, float* y, std::int64_t y_stride) const;

  const RowKernels* kernels_;
  const RowMath* math_;
  int count_ = 0;
  Product products_[kMaxFormats];
  LinearFormat formats_[kMaxFormats];
};

}  // namespace quire::ops::cpu
