// Stored values as floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

namespace quire {

// Element `index` of an array of `type`, a floating type; it need not be aligned.
inline float load_value(DType type, const void* base, std::int64_t index = 0) {
  const auto* bytes =
      static_cast<const std::uint8_t*>(base) + index * static_cast<std::int64_t>(dtype_bytes(type));
  if (type == DType::f32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  if (type == DType::fp8_e4m3) return fp8_e4m3_to_f32(*bytes);
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return type == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// Unit roundoff of a type that results are rounded to.
inline double unit_roundoff(DType type) {
  switch (type) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::fp8_e4m3:
      return 0x1p-4;
    default:
      return 0x1p-24;
  }
}

}  // namespace quire
