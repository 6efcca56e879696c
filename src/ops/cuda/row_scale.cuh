// The largest magnitudes of bf16 rows, and the scales of rows that become f16 for products with e4m3 weights.
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

}  // namespace quire::ops::cuda
