#include "ops/cpu/products.h"

#include <ggml-quants.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;

// A block of weight rows and of activation rows that stay in the first-level cache while all pairs are
// multiplied (16 + 16 rows of 1,536 columns are 16 + 27 KB in Q4_1 and Q8_1).
constexpr std::int64_t kDotBlock = 16;

struct ActivationInfo {
  std::int64_t block;
  std::int64_t bytes;
  std::string_view name;
};
constexpr ActivationInfo kActivations[] = {
    {1, 4, "f32"},
    {32, 34, "q8_0"},
    {32, 36, "q8_1"},
    {256, 292, "q8_k"},
};
const ActivationInfo& info_of(ActivationFormat format) {
  return kActivations[static_cast<std::size_t>(format)];
}

void copy_f32(const void* x, float* y, std::int64_t count) {
  std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(float));
}
template <float (*kConvert)(std::uint16_t)>
void from_16_bits(const void* x, float* y, std::int64_t count) {
  const auto* halves = static_cast<const std::uint16_t*>(x);
  for (std::int64_t i = 0; i < count; ++i) y[i] = kConvert(halves[i]);
}
void from_e4m3(const void* x, float* y, std::int64_t count) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (std::size_t bits = 0; bits < all.size(); ++bits)
      all[bits] = fp8_e4m3_to_f32(static_cast<std::uint8_t>(bits));
    return all;
  }();
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  const float* table = values.data();
  for (std::int64_t i = 0; i < count; ++i) y[i] = table[bytes[i]];
}
template <class Block, void (*kFunction)(const Block*, float*, std::int64_t)>
void from_blocks(const void* x, float* y, std::int64_t count) {
  kFunction(static_cast<const Block*>(x), y, count);
}

}  // namespace

std::int64_t activation_row_bytes(ActivationFormat format, std::int64_t cols) {
  const ActivationInfo& info = info_of(format);
  QUIRE_CHECK(cols % info.block == 0, "{} columns are not whole {} blocks", cols, info.name);
  return cols / info.block * info.bytes;
}

ProductTable::ProductTable(Isa isa) : kernels_(&row_kernels(isa)), math_(&row_math(isa)) {
  add_floats(isa);
  add_blocks();
}

void ProductTable::add(const Product& product, std::string_view library, std::string_view activation) {
  QUIRE_CHECK(count_ < kMaxFormats && find(product.format) == nullptr, "format {} of {}",
              static_cast<int>(product.format), count_);
  products_[count_] = product;
  formats_[count_++] = LinearFormat{product.format, library, activation, Determinism::schedule_invariant};
}

// The tile sums a vector of partial sums, columns of a vector's width at a time; the dot products use four.
// So one row goes through the tile as well where more would.
void ProductTable::add_floats(Isa isa) {
  Product p{WeightFormat::f32, ActivationFormat::f32, kernels_->f32, copy_f32};
  if (isa != Isa::portable) p.tile_cols = kernels_->name == "avx512" ? 16 : 8;
  add(p, p.tile_cols > 0 ? "ggml tiles" : "ggml dots", "f32");
  add_panels(WeightFormat::f16, math_->from_f16 ? math_->from_f16 : from_16_bits<f16_to_f32>,
             &RowMath::dot_f16);
  add_panels(WeightFormat::bf16, math_->from_bf16, &RowMath::dot_bf16);
  add_panels(WeightFormat::fp8_e4m3, math_->from_e4m3 ? math_->from_e4m3 : from_e4m3, &RowMath::dot_e4m3);
}

void ProductTable::add_panels(WeightFormat format, Dequantise dequantise,
                              RowMath::DotFour RowMath::*dot_four) {
  Product p{format, ActivationFormat::f32, kernels_->f32, dequantise};
  p.panels = true;
  // The order of the tile that is used, which on AVX-512 without VNNI is the AVX2 one.
  p.dot_four = (kernels_->name == "avx2" ? avx2::kRowMath : *math_).*dot_four;
  add(p, "unpacked in panels, ggml f32 tiles; one row: unpacked in registers, same sums", "f32");
}

void ProductTable::add_blocks() {
  const RowKernels& k = *kernels_;
  const auto line = [&](WeightFormat format, ActivationFormat activation, VecDot dot, Dequantise dequantise) {
    add(Product{format, activation, dot, dequantise}, "ggml dots", info_of(activation).name);
  };
  using W = WeightFormat;
  using A = ActivationFormat;
  const RowMath& m = *math_;
  add_panels(W::q8_0, m.from_q8_0 ? m.from_q8_0 : from_blocks<block_q8_0, dequantize_row_q8_0>,
             &RowMath::dot_q8_0);
  add_panels(W::q4_0, m.from_q4_0 ? m.from_q4_0 : from_blocks<block_q4_0, dequantize_row_q4_0>,
             &RowMath::dot_q4_0);
  add_panels(W::q4_1, m.from_q4_1 ? m.from_q4_1 : from_blocks<block_q4_1, dequantize_row_q4_1>,
             &RowMath::dot_q4_1);
  line(W::q5_0, A::q8_0, k.dot_q5_0, from_blocks<block_q5_0, dequantize_row_q5_0>);
  line(W::q5_1, A::q8_1, k.dot_q5_1, from_blocks<block_q5_1, dequantize_row_q5_1>);
  line(W::q2_k, A::q8_k, k.dot_q2_k, from_blocks<block_q2_K, dequantize_row_q2_K>);
  line(W::q3_k, A::q8_k, k.dot_q3_k, from_blocks<block_q3_K, dequantize_row_q3_K>);
  line(W::q4_k, A::q8_k, k.dot_q4_k, from_blocks<block_q4_K, dequantize_row_q4_K>);
  line(W::q5_k, A::q8_k, k.dot_q5_k, from_blocks<block_q5_K, dequantize_row_q5_K>);
  line(W::q6_k, A::q8_k, k.dot_q6_k, from_blocks<block_q6_K, dequantize_row_q6_K>);
  line(W::iq4_nl, A::q8_0, k.dot_iq4_nl, from_blocks<block_iq4_nl, dequantize_row_iq4_nl>);
  line(W::iq4_xs, A::q8_k, k.dot_iq4_xs, from_blocks<block_iq4_xs, dequantize_row_iq4_xs>);
  line(W::mxfp4, A::q8_0, k.dot_mxfp4, from_blocks<block_mxfp4, dequantize_row_mxfp4>);
}

const Product* ProductTable::find(WeightFormat format) const {
  for (int i = 0; i < count_; ++i) {
    if (products_[i].format == format) return &products_[i];
  }
  return nullptr;
}

void ProductTable::round_row(ActivationFormat format, const float* x, void* y, std::int64_t cols) const {
  switch (format) {
    case ActivationFormat::q8_0:
      return kernels_->q8_0(x, y, cols);
    case ActivationFormat::q8_1:
      return kernels_->q8_1(x, y, cols);
    case ActivationFormat::q8_k:
      return kernels_->q8_k(x, y, cols);
    case ActivationFormat::f32:
      break;
  }
  QUIRE_CHECK(false, "activation format {} is not rounded", static_cast<int>(format));
}

void ProductTable::multiply_dots(const Product& product, const char* weight, std::int64_t row_bytes,
                                 std::int64_t rows, std::int64_t cols, const char* activation,
                                 std::int64_t activation_stride, std::int64_t count, float* y,
                                 std::int64_t y_stride) const {
  for (std::int64_t i0 = 0; i0 < rows; i0 += kDotBlock) {
    const std::int64_t i1 = std::min(rows, i0 + kDotBlock);
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t i = i0; i < i1; ++i) {
        product.dot(static_cast<int>(cols), y + j * y_stride + i, 0, weight + i * row_bytes, 0,
                    activation + j * activation_stride, 0, 1);
      }
    }
  }
}

void ProductTable::multiply(const Product& product, const void* weight, std::int64_t row_bytes,
                            std::int64_t rows, std::int64_t cols, const void* activation,
                            std::int64_t activation_stride, std::int64_t count, float* y,
                            std::int64_t y_stride, float* panel) const {
  const char* w = static_cast<const char*>(weight);
  const char* x = static_cast<const char*>(activation);
  if (!product.panels)
    return multiply_packed(product, w, row_bytes, rows, cols, x, activation_stride, count, y, y_stride);
  const Product& f32 = *find(WeightFormat::f32);
  std::int64_t i = 0;
  if (count == 1 && product.dot_four != nullptr && f32.tile_cols > 0 && cols % f32.tile_cols == 0) {
    const auto* values = reinterpret_cast<const float*>(x);
    for (; i + 4 <= rows; i += 4) product.dot_four(w + i * row_bytes, row_bytes, values, cols, y + i);
  }
  const std::int64_t height = panel_rows(cols);
  for (; i < rows; i += height) {
    const std::int64_t here = std::min(height, rows - i);
    for (std::int64_t r = 0; r < here; ++r)
      product.dequantise(w + (i + r) * row_bytes, panel + r * cols, cols);
    multiply_packed(f32, reinterpret_cast<const char*>(panel), cols * 4, here, cols, x, activation_stride,
                    count, y + i, y_stride);
  }
}

void ProductTable::multiply_packed(const Product& product, const char* w, std::int64_t row_bytes,
                                   std::int64_t rows, std::int64_t cols, const char* x,
                                   std::int64_t activation_stride, std::int64_t count, float* y,
                                   std::int64_t y_stride) const {
  // Which rows are tiled follows from the weight's shape alone, never from the number of activation rows.
  const bool tiles = product.tile_cols > 0 && cols % product.tile_cols == 0;
  const std::int64_t tiled = tiles ? rows / kTileRows * kTileRows : 0;
  if (tiled > 0) {
    constexpr std::int64_t kFloat = sizeof(float);
    QUIRE_CHECK(activation_stride % kFloat == 0, "rows {} bytes apart", activation_stride);
    bool done = false;
    if (count > 1) {
      done = run_tiled(*kernels_, tiled, count, cols, w, x, activation_stride / kFloat, y, y_stride);
    } else {
      // The tile wants two rows: it gets the same one twice, and the second result is dropped.
      constexpr std::int64_t kPiece = 256;
      float twice[2 * kPiece];
      for (std::int64_t i = 0; i < tiled; i += kPiece) {
        const std::int64_t piece = std::min(kPiece, tiled - i);
        done = run_tiled(*kernels_, piece, 2, cols, w + i * row_bytes, x, 0, twice, kPiece);
        std::memcpy(y + i, twice, static_cast<std::size_t>(piece) * sizeof(float));
      }
    }
    QUIRE_CHECK(done, "no tile for {} rows, {} columns, {} activations", tiled, cols, count);
  }
  multiply_dots(product, w + tiled * row_bytes, row_bytes, rows - tiled, cols, x, activation_stride, count,
                y + tiled, y_stride);
}

}  // namespace quire::ops::cpu
