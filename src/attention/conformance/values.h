// Conversions of single values, over tensor/dtype.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/values.h"

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

inline float rounded(DType type, float value) {
  char bytes[4];
  encode(type, value, bytes);
  return load_value(type, bytes);
}

}  // namespace quire::conformance
