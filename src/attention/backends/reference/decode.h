// Stored bits to double and back, written from the formats' definitions. The reference row's own.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::attention::reference {

// `count` elements, `stride` bytes apart, into `values`.
void load(DType type, const void* base, std::int64_t count, std::int64_t stride, double* values);
// Rounds to nearest even. `type` is f32, bf16 or f16.
void store(DType type, void* base, std::int64_t index, double value);

// One element from its bits: sign, exponent and mantissa taken apart.
double decode_bits(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity);
double decode_fp8_e4m3(std::uint8_t bits);

}  // namespace quire::attention::reference
