// Built with -mavx2 -mfma -mf16c; called only where the processor has them.
#include <immintrin.h>

#include "attention/backends/cpu/kernel.h"

namespace quire::attention::cpu {
namespace {

#include "attention/backends/cpu/simd_avx2.h"

using F = F8;
constexpr int kLanes = 8;
constexpr int kMicroRows = 6;                    // 12 accumulators, 2 loads, 1 broadcast: 15 of 16 registers
constexpr int kKeysAtOnce[5] = {0, 8, 6, 4, 2};  // by rows: up to 12 accumulators
constexpr int kStepsAtOnce[5] = {0, 4, 3, 2, 1};
constexpr int kFetchLevel = 2;

inline F load_wide(const float* p) { return load(p); }
inline F set(float x) { return set8(x); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline float first_lane(F x) { return _mm256_cvtss_f32(x); }

inline F select(unsigned bits, F yes, F no) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i mask =
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), lane);
  return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask));
}
inline F zero_where_below(F value, F x, float limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, set(limit), _CMP_LT_OQ), value);
}
inline F select_below(F x, float limit, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, set(limit), _CMP_LT_OQ));
}
inline F with_sign_of(F value, F sign) {
  const F bit = set(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(bit, value), _mm256_and_ps(bit, sign));
}
// value * 2^n, n held in the low bits of `shifted` (kernel.inl: exp_nonpositive).
inline F add_exponent(F value, F shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), n));
}
inline float max_lane(F x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
inline float sum_lanes(F x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_avx2() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
