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
// value * 2^n, n held in the low bits of `shifted` (kernel.inl: exp2_nonpositive).
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

template <KvElement E, class Rows>
inline void load_keys(Rows keys, std::int64_t j, int u, F& a, F& b) {
  const char* x = keys.at(j) + 16 * u * kElementBytes[E];
  const char* y = keys.at(j + kKeyStep) + 16 * u * kElementBytes[E];
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

// Chains 0+2 and 1+3, 4+6 and 5+7 of a, then of b.
inline F sum_pairs(F a, F b) { return add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
// Of two such: chains 0+2+1+3 and 4+6+5+7.
inline F sum_quads(F a, F b) {
  const __m512d x = _mm512_castps_pd(a);
  const __m512d y = _mm512_castps_pd(b);
  return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
inline F sum_halves(F a, F b) {
  return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// The chains of a block of keys become scores in steps, 4 for each 8 vectors, that go between the
// multiply-adds of the next block: at once they would hold them up. Until then the chains are parked.
template <int kRows, int kVectors>
struct ChainSums {
  static constexpr int kGroup = 8;  // vectors
  static constexpr int kSteps = (kRows * kVectors + kGroup - 1) / kGroup * 4;
  static_assert(kSteps * 2 * kLanes <= kParked);
  F pair, quad;

  static void park(const F (&acc)[kRows][kVectors], std::int64_t, float* chains, float*) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) QUIRE_UNROLL
    for (int n = 0; n < kVectors; ++n) store(chains + (r * kVectors + n) * kLanes, acc[r][n]);
  }
  // Step i of 8 vectors: as ((0+2)+(1+3)) + ((4+6)+(5+7)) over 8 lanes each; kernel.inl: tree(). Lanes 0..3
  // of the result are of the low 8 lanes of vectors 0..3, 4..7 of the high ones; 8..15 the same of 4..7.
  void step(int i, const float* chains, float* scores) {
    const float* x = chains + i * 2 * kLanes;
    const F now = sum_pairs(load_wide(x), load_wide(x + kLanes));
    if (i % 2 == 0) {
      pair = now;
    } else if (i % 4 == 1) {
      quad = sum_quads(pair, now);
    } else {
      put(i / 4, sum_halves(quad, sum_quads(pair, now)), scores);
    }
  }
  static void put(int group, F sums, float* scores) {
    if constexpr (kVectors == kGroup) {
      store(scores + group * kTileKeys, sums);
    } else {
      float* to = scores + 2 * group * kTileKeys;
      _mm256_storeu_ps(to, _mm512_castps512_ps256(sums));
      if (2 * group + 1 < kRows) _mm256_storeu_ps(to + kTileKeys, _mm512_extractf32x8_ps(sums, 1));
    }
  }
};

#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
