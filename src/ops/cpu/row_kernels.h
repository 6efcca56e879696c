// ggml's row kernels and small matrix products of one instruction set, by name. No arithmetic of ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "platform/cpu/isa.h"

struct ggml_compute_params;

namespace quire::ops::cpu {

using Quantise = void (*)(const float* x, void* y, std::int64_t count);
using Dequantise = void (*)(const void* x, float* y, std::int64_t count);
// *sum = the product of `count` elements of a weight row and of an activation row. The strides and `rows`
// are for kernels of other machines: 0, 0, 0 and 1.
using VecDot = void (*)(int count, float* sum, std::size_t, const void* weight, std::size_t,
                        const void* activation, std::size_t, int rows);
// ggml's tiled product C = A^T B: false when it has no tile for these types and shapes.
using TiledProduct = bool (*)(const ggml_compute_params* params, std::int64_t m, std::int64_t n,
                              std::int64_t k, const void* a, std::int64_t lda, const void* b,
                              std::int64_t ldb, void* c, std::int64_t ldc, int a_type, int b_type,
                              int c_type);

struct RowKernels {
  std::string_view name;  // "avx2"
  TiledProduct tiled;
  Quantise q8_0, q8_1, q8_k;
  VecDot f32;
  VecDot dot_q5_0, dot_q5_1;
  VecDot dot_q2_k, dot_q3_k, dot_q4_k, dot_q5_k, dot_q6_k;
  VecDot dot_iq4_nl, dot_iq4_xs, dot_mxfp4;
};

// The copy for this level. An AVX-512 processor without VNNI gets the AVX2 one.
const RowKernels& row_kernels(platform::cpu::Isa isa);

// Runs `tiled` over float32 on one thread: c[j * ldc + i] = row i of a (k values) by row j of b (ldb values
// apart).
bool run_tiled(const RowKernels& kernels, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
               const void* b, std::int64_t ldb, float* c, std::int64_t ldc);

}  // namespace quire::ops::cpu
