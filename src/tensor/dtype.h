// Element types of activations and KV caches, and the exact scalar conversions between them.
// Conversions to 16 bits round to nearest even; fp8 e4m3 (OCP, no infinity, NaN = 0x7f) saturates at 448.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

enum class DType : std::uint8_t { f32, bf16, f16, fp8_e4m3, i8, u8, i32, i64, u64 };

std::size_t dtype_bytes(DType type);
std::string_view to_string(DType type);  // "f32", "bf16", ...
std::optional<DType> dtype_from_string(std::string_view name);

float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);
float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);
float fp8_e4m3_to_f32(std::uint8_t bits);
// Saturates, NaN stays NaN. Here and without branches, so that loops over rows become vectors.
inline std::uint8_t f32_to_fp8_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // From 2^-6 on the exponent moves by 120; below that a unit is 2^-9, which is what a float has at 2^14.
  const std::uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  const std::uint32_t rounded = magnitude < 0x3c800000u ? small : std::min(normal, 0x7eu);
  const std::uint32_t kept = magnitude > 0x7f800000u ? 0x7fu : rounded;
  return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | kept);
}

inline constexpr float kFp8E4m3Max = 448.0f;

}  // namespace quire
