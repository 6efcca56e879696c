#include "tensor/weight.h"

#include <array>

#include "base/check.h"

namespace quire {
namespace {

// In the order of WeightFormat. Block sizes are ggml's; the plain types have blocks of one element.
constexpr std::array<WeightFormatInfo, 17> kFormats = {{
    {WeightFormat::f32, "F32", 1, 4},
    {WeightFormat::f16, "F16", 1, 2},
    {WeightFormat::bf16, "BF16", 1, 2},
    {WeightFormat::q8_0, "Q8_0", 32, 34},        // f16 scale, 32 x int8
    {WeightFormat::q4_0, "Q4_0", 32, 18},        // f16 scale, 32 x 4 bits
    {WeightFormat::q4_1, "Q4_1", 32, 20},        // f16 scale and minimum, 32 x 4 bits
    {WeightFormat::q5_0, "Q5_0", 32, 22},        // f16 scale, 32 high bits, 32 x 4 bits
    {WeightFormat::q5_1, "Q5_1", 32, 24},        // and a minimum
    {WeightFormat::q2_k, "Q2_K", 256, 84},       // 16 x (4 + 4) bits of scale and minimum, f16 twice
    {WeightFormat::q3_k, "Q3_K", 256, 110},      // high bits, 2 bits, 16 scales of 6 bits, f16
    {WeightFormat::q4_k, "Q4_K", 256, 144},      // f16 twice, 8 x (6 + 6) bits, 4 bits
    {WeightFormat::q5_k, "Q5_K", 256, 176},      // and high bits
    {WeightFormat::q6_k, "Q6_K", 256, 210},      // 4 bits, 2 bits, 16 x int8, f16
    {WeightFormat::iq4_nl, "IQ4_NL", 32, 18},    // f16 scale, 32 x 4 bits into a table
    {WeightFormat::iq4_xs, "IQ4_XS", 256, 136},  // f16, 8 scales of 6 bits, 4 bits into a table
    {WeightFormat::mxfp4, "MXFP4", 32, 17},      // e8m0 scale, 32 x e2m1
    {WeightFormat::fp8_e4m3, "F8_E4M3", 1, 1},
}};

constexpr bool in_enum_order() {
  for (std::size_t index = 0; index < kFormats.size(); ++index) {
    if (static_cast<std::size_t>(kFormats[index].format) != index) return false;
  }
  return true;
}
static_assert(in_enum_order());

}  // namespace

const WeightFormatInfo& weight_format_info(WeightFormat format) {
  const auto index = static_cast<std::size_t>(format);
  QUIRE_CHECK(index < kFormats.size(), "weight format {}", index);
  return kFormats[index];
}

std::optional<DType> element_type(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return DType::f32;
    case WeightFormat::f16:
      return DType::f16;
    case WeightFormat::bf16:
      return DType::bf16;
    case WeightFormat::fp8_e4m3:
      return DType::fp8_e4m3;
    default:
      return std::nullopt;
  }
}

std::int64_t weight_row_bytes(WeightFormat format, std::int64_t cols) {
  const WeightFormatInfo& info = weight_format_info(format);
  QUIRE_CHECK(cols >= 0 && cols % info.block_elements == 0, "{} with cols={}", info.name, cols);
  return cols / info.block_elements * info.block_bytes;
}

}  // namespace quire
