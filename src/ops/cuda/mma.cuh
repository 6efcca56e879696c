// The 16 x 8 x 16 product of tensor cores, and weights as its operands.
#pragma once

#include <cstdint>

#include "ops/cuda/device.cuh"

namespace quire::ops::cuda {

// d += a b: a 16 x 16 (rows lane/4 and lane/4 + 8), b 16 x 8, d 16 x 8 float32.
template <bool kHalf>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kHalf) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Four e4m3 values as two pairs of bf16, exactly (but for NaN, which no weight is): sign, exponent and
// mantissa go to their places, and the product with 2^120 makes up for the other exponent bias.
__device__ __forceinline__ void widen_fp8(std::uint32_t four, std::uint32_t& low, std::uint32_t& high) {
  const std::uint32_t l = __byte_perm(four, 0, 0x1404), h = __byte_perm(four, 0, 0x3424);
  const std::uint32_t l16 = (l & 0x80008000u) | ((l >> 4) & 0x07f007f0u);
  const std::uint32_t h16 = (h & 0x80008000u) | ((h >> 4) & 0x07f007f0u);
  constexpr std::uint32_t kTwoTo120 = 0x7b807b80u;
  const __nv_bfloat162 factor = *reinterpret_cast<const __nv_bfloat162*>(&kTwoTo120);
  const __nv_bfloat162 l2 = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&l16), factor);
  const __nv_bfloat162 h2 = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&h16), factor);
  low = *reinterpret_cast<const std::uint32_t*>(&l2);
  high = *reinterpret_cast<const std::uint32_t*>(&h2);
}

}  // namespace quire::ops::cuda
