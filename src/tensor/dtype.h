// Element types of activations and KV caches, and the exact scalar conversions between them.
// Conversions to 16 bits round to nearest even; fp8 e4m3 (OCP, no infinity, NaN = 0x7f) saturates at 448.
#pragma once

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
std::uint8_t f32_to_fp8_e4m3(float value);  // saturates, NaN stays NaN

inline constexpr float kFp8E4m3Max = 448.0f;

}  // namespace quire
