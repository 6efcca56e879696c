// Built with AVX2, FMA, F16C and AVX-512 F, BW, DQ, VL; called only where the processor has them.
#include <immintrin.h>

#include "attention/backends/cpu/kernel.h"

namespace quire::attention::cpu {
namespace {

#include "attention/backends/cpu/simd_avx2.h"

using F = __m512;
constexpr int kLanes = 16;
constexpr int kMicroRows = 8;    // 16 accumulators: two FMA pipes of latency 4 stay full
constexpr int kSoftmaxRows = 4;  // side by side
constexpr int kRegisters = 32;
constexpr int kKeysOfVector = 2;  // a vector holds 8 dims of key n and of key n + kKeyStep
constexpr int kKeyStep = 4;
constexpr int kKeyBlock = 16;
constexpr int kVectorsAtOnce[5] = {0, 8, 8, 4, 4};  // by rows
constexpr int kPanelsAtOnce[5] = {0, 4, 4, 2, 2};
constexpr int kFetchLevel = 2;
constexpr bool kFetchNear = true;  // into the first level, a few rows ahead
constexpr bool kKnownDims = true;  // loops of their own for the usual dims

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
inline F max_of_lanes(F x) {
  x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = _mm512_max_ps(x, _mm512_permute_ps(x, 0x4e));
  return _mm512_max_ps(x, _mm512_permute_ps(x, 0xb1));
}
inline float sum_of_lanes(F x) {
  __m256 w = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

inline F zero() { return _mm512_setzero_ps(); }
inline F load_query(const float* q) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(q)); }
constexpr int key_of_vector(int n) { return n / kKeyStep * kKeyStep * kKeysOfVector + n % kKeyStep; }

inline __m512i load_32_bytes(const char* low, const char* high) {
  const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
  return _mm512_inserti64x4(x, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
}
inline __m256i load_16_bytes(const char* low, const char* high) {
  const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
  return _mm256_inserti128_si256(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}
inline void widen_bf16(__m512i words, F& even, F& odd) {
  even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
inline F widen_fp8(__m128i bytes) {
  const __m256i wide = _mm256_cvtepi8_epi16(bytes);  // sign in bits 15..7
  __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  half = _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)));  // 0x7f is NaN
  return _mm512_cvtph_ps(half);
}

template <KvElement E>
inline void load_keys(const void* const* keys, int u, F& a, F& b) {
  const char* x = static_cast<const char*>(keys[0]) + 16 * u * kElementBytes[E];
  const char* y = static_cast<const char*>(keys[kKeyStep]) + 16 * u * kElementBytes[E];
  if constexpr (E == kF32) {
    a = _mm512_castsi512_ps(load_32_bytes(x, y));
    b = _mm512_castsi512_ps(load_32_bytes(x + 32, y + 32));
  } else if constexpr (E == kBf16) {
    widen_bf16(load_32_bytes(x, y), a, b);
  } else if constexpr (E == kF16) {
    a = _mm512_cvtph_ps(load_16_bytes(x, y));
    b = _mm512_cvtph_ps(load_16_bytes(x + 16, y + 16));
  } else {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(y));
    a = widen_fp8(_mm_unpacklo_epi64(low, high));
    b = widen_fp8(_mm_unpackhi_epi64(low, high));
  }
}

template <KvElement E>
inline void load_panel(const void* row, int n, int dims, F& a, F& b) {
  const char* at = static_cast<const char*>(row) + n * 32 * kElementBytes[E];
  const bool whole = 32 * (n + 1) <= dims;  // else there are 16
  if constexpr (E == kF32) {
    a = _mm512_loadu_ps(at);
    b = whole ? _mm512_loadu_ps(at + 64) : zero();
  } else if constexpr (E == kBf16) {
    widen_bf16(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(whole ? 0xffff : 0xff), at), a, b);
  } else if constexpr (E == kF16) {
    a = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    b = whole ? _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32))) : zero();
  } else {
    a = widen_fp8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    b = whole ? widen_fp8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16))) : zero();
  }
}

// Lanes 0..3: the sums of the low 8 lanes of x[0..3], 4..7: of the high ones; 8..15: the same of x[4..7].
// Each as ((0+2)+(1+3)) + ((4+6)+(5+7)) over its lanes; kernel.inl: tree().
inline F sum_chains(const F x[8]) {
  F pair[4];
  QUIRE_UNROLL
  for (int n = 0; n < 4; ++n)
    pair[n] = add(_mm512_unpacklo_ps(x[2 * n], x[2 * n + 1]), _mm512_unpackhi_ps(x[2 * n], x[2 * n + 1]));
  F quad[2];
  QUIRE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const __m512d a = _mm512_castps_pd(pair[2 * n]);
    const __m512d b = _mm512_castps_pd(pair[2 * n + 1]);
    quad[n] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  return add(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88), _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
}

template <int kRows>
[[gnu::always_inline]] inline void store_scores(F (&acc)[kRows][8], int, float*, float* scores) {
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) store(scores + r * kTileKeys, sum_chains(acc[r]));
}

template <int kRows>
[[gnu::always_inline]] inline void store_scores(F (&acc)[kRows][4], int, float*, float* scores) {
  QUIRE_UNROLL
  for (int r = 0; r < kRows; r += 2) {
    const int s = r + 1 < kRows ? r + 1 : r;
    const F both[8] = {acc[r][0], acc[r][1], acc[r][2], acc[r][3],
                       acc[s][0], acc[s][1], acc[s][2], acc[s][3]};
    const F sums = sum_chains(both);
    _mm256_storeu_ps(scores + r * kTileKeys, _mm512_castps512_ps256(sums));
    if (s != r) _mm256_storeu_ps(scores + s * kTileKeys, _mm512_extractf32x8_ps(sums, 1));
  }
}

#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
