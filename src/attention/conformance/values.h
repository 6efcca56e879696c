// Conversions of single values, over tensor/dtype.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

namespace quire::conformance {

inline void encode(DType type, float value, void* at) {
  if (type == DType::f32) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == DType::fp8_e4m3) {
    const std::uint8_t bits = f32_to_fp8_e4m3(value);
    std::memcpy(at, &bits, sizeof(bits));
  } else {
    const std::uint16_t bits = type == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

inline float decode(DType type, const void* at) {
  if (type == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (type == DType::fp8_e4m3) {
    std::uint8_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return fp8_e4m3_to_f32(bits);
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return type == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

inline float rounded(DType type, float value) {
  char bytes[4];
  encode(type, value, bytes);
  return decode(type, bytes);
}

}  // namespace quire::conformance
