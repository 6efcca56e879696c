// What the kernels of this folder share: element conversions, views of rows, reductions, and the two
// instructions of programmatic dependent launch.
//
// Every kernel here begins with begin_kernel() or says why not: the next kernel of the stream may be set up
// while this one runs, and nothing is read before what came earlier is complete. So a kernel that waits has,
// through the chain of waits, everything before it behind it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops::cuda {

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void begin_kernel() {
  let_next_start();
  wait_for_earlier();
}

// Rows of heads of n elements. A matrix is one head. `vector`: rows and heads start at multiples of eight
// elements and of 16 bytes, so eight elements move at once.
struct Rows {
  char* data = nullptr;
  DType type = DType::f32;
  bool vector = false;
  std::int32_t heads = 1;
  std::int32_t n = 0;
  std::int64_t row_stride = 0;   // elements
  std::int64_t head_stride = 0;  // elements
};

__device__ __forceinline__ int element_bytes(DType type) {
  return type == DType::f32 ? 4 : type == DType::fp8_e4m3 ? 1 : 2;
}
__device__ __forceinline__ char* head_at(const Rows& rows, std::int64_t row, std::int64_t head) {
  return rows.data + (row * rows.row_stride + head * rows.head_stride) * element_bytes(rows.type);
}
// Of item = row * heads + head.
__device__ __forceinline__ char* item_at(const Rows& rows, std::int64_t item) {
  if (rows.heads == 1) return head_at(rows, item, 0);
  return head_at(rows, item / rows.heads, item % rows.heads);
}

__device__ __forceinline__ float fp8_to_float(std::uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}
__device__ __forceinline__ std::uint8_t float_to_fp8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float load_one(const char* row, DType type, std::int64_t i) {
  switch (type) {
    case DType::f32:
      return reinterpret_cast<const float*>(row)[i];
    case DType::bf16:
      return __bfloat162float(reinterpret_cast<const Bf16*>(row)[i]);
    case DType::f16:
      return __half2float(reinterpret_cast<const __half*>(row)[i]);
    default:
      return fp8_to_float(reinterpret_cast<const std::uint8_t*>(row)[i]);
  }
}
__device__ __forceinline__ void store_one(char* row, DType type, std::int64_t i, float x) {
  switch (type) {
    case DType::f32:
      reinterpret_cast<float*>(row)[i] = x;
      return;
    case DType::bf16:
      reinterpret_cast<Bf16*>(row)[i] = __float2bfloat16_rn(x);
      return;
    case DType::f16:
      reinterpret_cast<__half*>(row)[i] = __float2half_rn(x);
      return;
    default:
      reinterpret_cast<std::uint8_t*>(row)[i] = float_to_fp8(x);
  }
}
// x as it reads back after a store of this type.
__device__ __forceinline__ float rounded(DType type, float x) {
  return type == DType::bf16  ? __bfloat162float(__float2bfloat16_rn(x))
         : type == DType::f16 ? __half2float(__float2half_rn(x))
                              : x;
}

// Elements [i, i + 8) of a row of n; what lies beyond n reads as 0 and is not stored.
__device__ __forceinline__ void load8(const char* row, DType type, bool vector, std::int64_t i,
                                      std::int64_t n, float (&x)[8]) {
  if (!vector || i + 8 > n) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = i + j < n ? load_one(row, type, i + j) : 0.0f;
    return;
  }
  if (type == DType::f32) {
    const float4* at = reinterpret_cast<const float4*>(row + i * 4);
    const float4 a = at[0], b = at[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else if (type == DType::bf16) {
    const uint4 packed = *reinterpret_cast<const uint4*>(row + i * 2);
    const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[2 * j] = __uint_as_float(words[j] << 16);
      x[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
  } else if (type == DType::f16) {
    const uint4 packed = *reinterpret_cast<const uint4*>(row + i * 2);
    const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[2 * j] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[j])));
      x[2 * j + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[j] >> 16)));
    }
  } else {
    const uint2 packed = *reinterpret_cast<const uint2*>(row + i);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      x[j] = fp8_to_float(static_cast<std::uint8_t>((j < 4 ? packed.x : packed.y) >> (8 * (j & 3))));
  }
}
__device__ __forceinline__ void store8(char* row, DType type, bool vector, std::int64_t i, std::int64_t n,
                                       const float (&x)[8]) {
  if (!vector || i + 8 > n) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j < n) store_one(row, type, i + j, x[j]);
    }
    return;
  }
  if (type == DType::f32) {
    float4* at = reinterpret_cast<float4*>(row + i * 4);
    at[0] = make_float4(x[0], x[1], x[2], x[3]);
    at[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  if (type == DType::fp8_e4m3) {
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = make_float2(x[2 * j], x[2 * j + 1]);
      const std::uint32_t pair = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
      words[j / 2] |= pair << (16 * (j & 1));
    }
    *reinterpret_cast<uint2*>(row + i) = make_uint2(words[0], words[1]);
    return;
  }
  std::uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (type == DType::bf16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * j], x[2 * j + 1]);
      words[j] = *reinterpret_cast<const std::uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(x[2 * j], x[2 * j + 1]);
      words[j] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
  *reinterpret_cast<uint4*>(row + i * 2) = make_uint4(words[0], words[1], words[2], words[3]);
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
// The sum over the block, in one fixed order, to every thread. `shared`: 32 values; ends with a barrier
// before the next use of `shared` is legal.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  x = warp_sum(x);
  if (blockDim.x == 32) return x;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x / 32);
  T total = (threadIdx.x & 31) < warps ? shared[threadIdx.x & 31] : T{};
  total = warp_sum(total);
  __syncthreads();
  return total;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace quire::ops::cuda
