#include "ops/cpu/row_kernels.h"

#include <ggml.h>

#include "ops/cpu/ggml_hooks.h"

extern "C" {
#define QUIRE_DOT(level, name)                                                                              \
  void quire_##level##_ggml_vec_dot_##name(int, float*, std::size_t, const void*, std::size_t, const void*, \
                                           std::size_t, int)
#define QUIRE_LEVEL(level)                                                                                   \
  bool quire_##level##_llamafile_sgemm(const ggml_compute_params*, std::int64_t, std::int64_t, std::int64_t, \
                                       const void*, std::int64_t, const void*, std::int64_t, void*,          \
                                       std::int64_t, int, int, int);                                         \
  void quire_##level##_quantize_row_q8_0(const float*, void*, std::int64_t);                                 \
  void quire_##level##_quantize_row_q8_1(const float*, void*, std::int64_t);                                 \
  void quire_##level##_quantize_row_q8_K(const float*, void*, std::int64_t);                                 \
  QUIRE_DOT(level, f32);                                                                                     \
  QUIRE_DOT(level, q5_0_q8_0);                                                                               \
  QUIRE_DOT(level, q5_1_q8_1);                                                                               \
  QUIRE_DOT(level, q2_K_q8_K);                                                                               \
  QUIRE_DOT(level, q3_K_q8_K);                                                                               \
  QUIRE_DOT(level, q4_K_q8_K);                                                                               \
  QUIRE_DOT(level, q5_K_q8_K);                                                                               \
  QUIRE_DOT(level, q6_K_q8_K);                                                                               \
  QUIRE_DOT(level, iq4_nl_q8_0);                                                                             \
  QUIRE_DOT(level, iq4_xs_q8_K);                                                                             \
  QUIRE_DOT(level, mxfp4_q8_0)
QUIRE_LEVEL(sse42);
QUIRE_LEVEL(avx2);
QUIRE_LEVEL(avx512);
}

namespace quire::ops::cpu {
namespace {

#define QUIRE_TABLE(level)                                                                  \
  RowKernels {                                                                              \
#level, quire_##level##_llamafile_sgemm, quire_##level##_quantize_row_q8_0,             \
        quire_##level##_quantize_row_q8_1, quire_##level##_quantize_row_q8_K,               \
        quire_##level##_ggml_vec_dot_f32, quire_##level##_ggml_vec_dot_q5_0_q8_0,           \
        quire_##level##_ggml_vec_dot_q5_1_q8_1, quire_##level##_ggml_vec_dot_q2_K_q8_K,     \
        quire_##level##_ggml_vec_dot_q3_K_q8_K, quire_##level##_ggml_vec_dot_q4_K_q8_K,     \
        quire_##level##_ggml_vec_dot_q5_K_q8_K, quire_##level##_ggml_vec_dot_q6_K_q8_K,     \
        quire_##level##_ggml_vec_dot_iq4_nl_q8_0, quire_##level##_ggml_vec_dot_iq4_xs_q8_K, \
        quire_##level##_ggml_vec_dot_mxfp4_q8_0                                             \
  }
constexpr RowKernels kSse42 = QUIRE_TABLE(sse42);
constexpr RowKernels kAvx2 = QUIRE_TABLE(avx2);
constexpr RowKernels kAvx512 = QUIRE_TABLE(avx512);

}  // namespace

const RowKernels& row_kernels(platform::cpu::Isa isa) {
  using platform::cpu::Isa;
  static const bool filled = fill_ggml_tables();
  static_cast<void>(filled);
  if (isa == Isa::portable) return kSse42;
  return isa >= Isa::avx512 && platform::cpu::cpu_features().avx512_vnni ? kAvx512 : kAvx2;
}

bool run_tiled(const RowKernels& kernels, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
               const void* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  ggml_threadpool pool{0};
  const ggml_compute_params params{0, 1, 0, nullptr, &pool, false};
  return kernels.tiled(&params, m, n, k, a, k, b, ldb, c, ldc, GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32);
}

}  // namespace quire::ops::cpu
