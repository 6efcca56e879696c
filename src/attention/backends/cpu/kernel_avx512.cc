// Built with AVX2, FMA, F16C and AVX-512 F, BW, DQ, VL; called only where the processor has them.
#include <immintrin.h>

#include "attention/backends/cpu/kernel.h"

namespace quire::attention::cpu {
namespace {

#include "attention/backends/cpu/simd_avx2.h"

using F = __m512;
constexpr int kLanes = 16;
constexpr int kMicroRows = 8;                    // 16 accumulators: two FMA pipes of latency 4 stay full
constexpr int kKeysAtOnce[5] = {0, 8, 8, 5, 4};  // by rows: up to 16 accumulators
constexpr int kStepsAtOnce[5] = {0, 4, 4, 2, 2};
constexpr int kFetchLevel = 2;

inline F load_wide(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline float first_lane(F x) { return _mm512_cvtss_f32(x); }

inline F select(unsigned bits, F yes, F no) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), no, yes);
}
inline F zero_where_below(F value, F x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_NLT_UQ), value);
}
inline F select_below(F x, float limit, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_LT_OQ), no, yes);
}
inline F with_sign_of(F value, F sign) {
  const F bit = set(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(bit, value), _mm512_and_ps(bit, sign));
}
// value * 2^n, n held in the low bits of `shifted` (kernel.inl: exp_nonpositive).
inline F add_exponent(F value, F shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), n));
}
inline float max_lane(F x) { return _mm512_reduce_max_ps(x); }
inline float sum_lanes(F x) {
  __m256 w = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
