// The few instructions of sm_80 (and some of sm_89 and sm_90) that the kernels are made of, and the element
// types they work on.
//
// Fragments of mma.m16n8k16, lane = 4 * g + c:
//   A (16 x 16)  a0: row g, columns 2c, 2c+1    a1: row g+8    a2: row g, columns 2c+8, 2c+9    a3: row g+8
//   B (16 x 8)   b0: rows 2c, 2c+1 of column g  b1: rows 2c+8, 2c+9
//   C (16 x 8)   c0, c1: row g, columns 2c, 2c+1    c2, c3: row g+8
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace quire::attention::cuda {

// threadIdx.x, read anew: what is computed from it stays where it is used instead of being kept in registers,
// or in local memory, over the loops before.
__device__ __forceinline__ std::int32_t thread_again() {
  std::int32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}
// The same, and the compiler knows that it is not negative: divided by a power of two it is shifted, no more.
// In the kernels of many rows that costs registers.
__device__ __forceinline__ std::int32_t thread_again_known() {
  const std::int32_t thread = thread_again();
  __builtin_assume(thread >= 0);
  return thread;
}

// Programmatic dependent launch (sm_90): the stream's next kernel, if it was launched so, may begin once
// every block of this one has called or ended; and: wait until what this kernel did not wait for is complete.
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_earlier() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// To shared memory, past L1: `bytes` of 16 (or 4) are read, 0 or all, and what is not read becomes zeros.
__device__ __forceinline__ void copy_async_16(std::uint32_t target, const void* source, std::int32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source),
               "r"(bytes));
}
__device__ __forceinline__ void copy_async_4(std::uint32_t target, const void* source, std::int32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target), "l"(source), "r"(bytes));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;\n" ::); }
template <int kLeft>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft));
}

// mbarriers: a count of threads that arrive. `turn` is 0 for the first time that all have, then 1, 0, ...
__device__ __forceinline__ void start_arrivals(std::uint32_t barrier, int threads) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void end_arrivals(std::uint32_t barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
// Once this thread's copies so far are done.
__device__ __forceinline__ void copy_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives, and waits for the others.
__device__ __forceinline__ void arrive_and_wait(std::uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      ".reg .b64 turn;\n"
      "mbarrier.arrive.shared.b64 turn, [%0];\n"
      "again:\n"
      "mbarrier.try_wait.shared.b64 done, [%0], turn;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier)
      : "memory");
}
__device__ __forceinline__ void wait_arrival(std::uint32_t barrier, int turn) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(turn)
      : "memory");
}

__device__ __forceinline__ void load_matrix_4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrix_4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// An 8 x 8 matrix of 16-bit values, two neighbours of row lane / 4 in each lane, turned over.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t pair) {
  std::uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(turned) : "r"(pair));
  return turned;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// A score in base-2 units under a softcap: cap * tanh(x / cap) by tanh(y) = 1 - 2 / (e^2y + 1), exact at both
// ends.
__device__ __forceinline__ float capped(float x, float cap2, float inverse) {
  return cap2 - __fdividef(2 * cap2, exp2_fast(2 * 1.4426950408889634f * (x * inverse)) + 1);
}

__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// What differs between bf16 and f16. e4m3 has 4 exponent bits of bias 7: moved to their place in the wider
// type a value comes out too small by a power of two, which one exact multiplication mends.
struct Bf16 {
  static constexpr int kE4m3Shift = 4;  // from a byte in the upper half of 16 bits to exponent | mantissa
  static constexpr std::uint32_t kE4m3Factor = 0x7b807b80u;  // 2^120 twice
  __device__ __forceinline__ static void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ __forceinline__ static std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ __forceinline__ static std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    const __nv_bfloat162 product =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const std::uint32_t&>(product);
  }
};

struct F16 {
  __device__ __forceinline__ static void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ __forceinline__ static std::uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
};

// The same in one instruction (sm_89): two e4m3 values in the lower or upper half of a word to a pair of f16.
__device__ __forceinline__ std::uint32_t low_e4m3_to_f16(std::uint32_t bytes) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(pair) : "h"(static_cast<std::uint16_t>(bytes)));
  return pair;
}
__device__ __forceinline__ std::uint32_t high_e4m3_to_f16(std::uint32_t bytes) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(pair) : "h"(static_cast<std::uint16_t>(bytes >> 16)));
  return pair;
}

// Two e4m3 values, each in the upper byte of a half of `bytes` (the lower bytes do not matter), to a pair of
// T.
template <class T>
__device__ __forceinline__ std::uint32_t from_e4m3(std::uint32_t bytes) {
  const std::uint32_t bits = (bytes & 0x80008000u) | ((bytes & 0x7f007f00u) >> T::kE4m3Shift);
  return T::multiply(bits, T::kE4m3Factor);
}
// Four consecutive values -> two pairs.
template <class T>
__device__ __forceinline__ void from_e4m3_row(std::uint32_t bytes, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (std::is_same_v<T, F16>) {
    low = low_e4m3_to_f16(bytes);
    high = high_e4m3_to_f16(bytes);
  } else {
    low = from_e4m3<T>(__byte_perm(bytes, 0, 0x1404));
    high = from_e4m3<T>(__byte_perm(bytes, 0, 0x3424));
  }
}
// Values of two rows, [r0c0, r0c1, r1c0, r1c1] -> the pairs (r0c0, r1c0) and (r0c1, r1c1).
template <class T>
__device__ __forceinline__ void from_e4m3_columns(std::uint32_t bytes, std::uint32_t& even,
                                                  std::uint32_t& odd) {
  if constexpr (std::is_same_v<T, F16>) {
    from_e4m3_row<T>(__byte_perm(bytes, 0, 0x3120), even, odd);
  } else {
    even = from_e4m3<T>(bytes << 8);
    odd = from_e4m3<T>(bytes);
  }
}

// The power of two that brings a row of q whose largest element is `most` to 2^14, so that f16 holds what
// matters of it: elements that then lie below f16's range are too small to be seen in a sum. 2^0 for what is
// no number.
__device__ __forceinline__ int f16_shift(float most) {
  const int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 127;
  return exponent == 128 || most == 0 ? 0 : min(14 - exponent, 126);
}
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<std::uint32_t>(127 + exponent) << 23);
}

}  // namespace quire::attention::cuda
