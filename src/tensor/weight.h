// WeightFormat and WeightView: how a weight matrix lies in memory. The list of formats is the table in
// weight.cc (name, block size, bytes per block); which of them an `ops` implementation multiplies is that
// implementation's own table (ops/ops.h: Ops::linear_formats).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace quire {

// Plain element types and ggml block formats. Values are ours, not ggml's; checkpoint/ maps the file's.
enum class WeightFormat : std::uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  fp8_e4m3,
};

struct WeightFormatInfo {
  WeightFormat format;
  std::string_view name;        // "Q4_1"
  std::int64_t block_elements;  // elements per block; 1 for plain types
  std::int64_t block_bytes;
};
const WeightFormatInfo& weight_format_info(WeightFormat format);

// The type of a plain format's elements; nothing for formats of blocks.
std::optional<DType> element_type(WeightFormat format);

// A matrix of `rows` outputs by `cols` inputs: y[t, r] = sum_c x[t, c] * W[r, c]. Rows are contiguous,
// row_bytes apart; cols is a multiple of block_elements. Borrowed memory, read-only.
// A stack of `experts` such matrices lies expert_bytes apart (1 for an ordinary weight).
struct WeightView {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_bytes = 0;
  std::int64_t experts = 1;
  std::int64_t expert_bytes = 0;
  // fp8_e4m3: one scale per row of every expert, [experts, rows]; null: 1. Other formats keep theirs inside.
  const float* row_scale = nullptr;

  bool empty() const { return data == nullptr; }
  WeightView expert(std::int64_t index) const {
    WeightView view = *this;
    view.data = static_cast<const char*>(data) + index * expert_bytes;
    view.experts = 1;
    view.expert_bytes = 0;
    if (row_scale != nullptr) view.row_scale = row_scale + index * rows;
    return view;
  }
};

// Bytes of one row of `cols` elements; cols must be a multiple of the block (checked).
std::int64_t weight_row_bytes(WeightFormat format, std::int64_t cols);

}  // namespace quire
