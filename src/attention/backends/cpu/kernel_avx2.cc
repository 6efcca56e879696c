// Built with -mavx2 -mfma -mf16c; called only where the processor has them.
#include <immintrin.h>

#include "attention/backends/cpu/kernel.h"

namespace quire::attention::cpu {
namespace {

#include "attention/backends/cpu/simd_avx2.h"

using F = F8;
constexpr int kLanes = 8;
constexpr int kMicroRows = 6;    // 12 accumulators, 2 loads, 1 broadcast: 15 of 16 registers
constexpr int kSoftmaxRows = 1;  // side by side
constexpr int kRegisters = 16;
constexpr int kVectorsAtOnce[5] = {0, 8, 4, 4, 2};  // by rows
constexpr int kPanelsAtOnce[5] = {0, 4, 2, 2, 1};
constexpr int kFetchLevel = 2;
constexpr bool kFetchNear = false;  // into the first level, a few rows ahead
constexpr bool kKnownDims = true;   // loops of their own for the usual dims

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
// value * 2^n, n held in the low bits of `shifted` (kernel.inl: exp2_nonpositive).
inline F add_exponent(F value, F shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), n));
}
inline F max_of_lanes(F x) {
  x = max(x, _mm256_permute2f128_ps(x, x, 1));
  x = max(x, _mm256_permute_ps(x, 0x4e));
  return max(x, _mm256_permute_ps(x, 0xb1));
}
inline float sum_of_lanes(F x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// Lane n of the result: ((0+2)+(1+3)) + ((4+6)+(5+7)) over the lanes of x[n]; kernel.inl: tree().
inline F sum_chains(const F x[8]) {
  F pair[4];
  QUIRE_UNROLL
  for (int n = 0; n < 4; ++n)
    pair[n] = add(_mm256_unpacklo_ps(x[2 * n], x[2 * n + 1]), _mm256_unpackhi_ps(x[2 * n], x[2 * n + 1]));
  F quad[2];
  QUIRE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const __m256d a = _mm256_castps_pd(pair[2 * n]);
    const __m256d b = _mm256_castps_pd(pair[2 * n + 1]);
    quad[n] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  return add(_mm256_permute2f128_ps(quad[0], quad[1], 0x20), _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
}

#include "attention/backends/cpu/keys_of_8.h"

// The kernels follow what they use.
#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_avx2() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
