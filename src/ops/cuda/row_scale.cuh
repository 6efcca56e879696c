// Scales of activation rows, and bf16 rows on their way to products with e4m3 weights.
#pragma once

#include <cstdint>

#include "ops/cuda/device.cuh"

namespace quire::ops::cuda {

// Magnitudes are compared as the bits of a float, which order as they do, infinity above all numbers and NaN
// above that. `two`: the largest of the lower and of the upper halves of words of bf16 pairs.
__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t two, const uint4& eight) {
  for (const std::uint32_t word : {eight.x, eight.y, eight.z, eight.w})
    two = __vmaxu2(two, word & 0x7fff7fffu);
  return two;
}
__device__ __forceinline__ std::uint32_t larger_half(std::uint32_t two) {
  return max(two << 16, two & 0xffff0000u);
}

// The power of two that a row of this largest magnitude is divided by to be f16: then it is below 2^15, and
// what is lost of bf16 values lies under 2^-38 of the largest. Its inverse is finite. Infinities and NaN
// stay.
__device__ __forceinline__ float f16_scale_of(std::uint32_t largest) {
  constexpr std::uint32_t kLeastExponent = 15, kBelow = 14;
  return __uint_as_float((max(largest >> 23, kLeastExponent) - kBelow) << 23);
}

// Eight bf16 times `inverse`, as f16.
__device__ __forceinline__ uint4 scaled_to_f16(const uint4& eight, float inverse) {
  const auto pair = [&](std::uint32_t word) {
    const __half2 two = __floats2half2_rn(__uint_as_float(word << 16) * inverse,
                                          __uint_as_float(word & 0xffff0000u) * inverse);
    return *reinterpret_cast<const std::uint32_t*>(&two);
  };
  return make_uint4(pair(eight.x), pair(eight.y), pair(eight.z), pair(eight.w));
}

}  // namespace quire::ops::cuda
