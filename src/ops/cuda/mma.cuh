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

// Four e4m3 values as two pairs of f16, exactly, by one instruction a pair.
__device__ __forceinline__ void halve_fp8(std::uint32_t four, std::uint32_t& low, std::uint32_t& high) {
  const __half2_raw l = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(four), __NV_E4M3);
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(four >> 16), __NV_E4M3);
  low = *reinterpret_cast<const std::uint32_t*>(&l);
  high = *reinterpret_cast<const std::uint32_t*>(&h);
}

}  // namespace quire::ops::cuda
