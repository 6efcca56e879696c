// 8 lanes with AVX2, FMA and F16C. Included inside an anonymous namespace (see kernel.inl), by the AVX-512
// kernels too: there F8 stays the type whose lanes hold dims, so that both count the same chains.
#pragma once

using F8 = __m256;

constexpr int kElementBytes[kKvElements] = {4, 2, 2, 1};
constexpr float kFp8Unit = 256.0f;  // an e4m3 pattern read as a half is the value / 2^8

inline F8 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F8 x) { _mm256_storeu_ps(p, x); }
inline F8 zero8() { return _mm256_setzero_ps(); }
inline F8 set8(float x) { return _mm256_set1_ps(x); }
inline F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
inline F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
inline F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }

inline F8 widen_fp8(const char* at) {
  const __m128i wide =
      _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));  // sign in bits 15..7
  __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
  const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  half = _mm_or_si128(half, _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)));  // 0x7f is NaN
  return _mm256_cvtph_ps(half);
}

template <KvElement E>
inline void load16(const void* row, int u, F8& a, F8& b) {
  const char* at = static_cast<const char*>(row) + 16 * u * kElementBytes[E];
  if constexpr (E == kF32) {
    a = load(reinterpret_cast<const float*>(at));
    b = load(reinterpret_cast<const float*>(at) + 8);
  } else if constexpr (E == kBf16) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    a = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    b = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  } else if constexpr (E == kF16) {
    a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    b = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)));
  } else {
    a = widen_fp8(at);
    b = widen_fp8(at + 8);
  }
}

inline void transpose8(F8 x[8]) {
  F8 s[8];
  QUIRE_UNROLL
  for (int n = 0; n < 4; ++n) {
    s[2 * n] = _mm256_unpacklo_ps(x[2 * n], x[2 * n + 1]);
    s[2 * n + 1] = _mm256_unpackhi_ps(x[2 * n], x[2 * n + 1]);
  }
  F8 u[8];
  QUIRE_UNROLL
  for (int n = 0; n < 2; ++n) {
    u[4 * n] = _mm256_shuffle_ps(s[4 * n], s[4 * n + 2], 0x44);
    u[4 * n + 1] = _mm256_shuffle_ps(s[4 * n], s[4 * n + 2], 0xee);
    u[4 * n + 2] = _mm256_shuffle_ps(s[4 * n + 1], s[4 * n + 3], 0x44);
    u[4 * n + 3] = _mm256_shuffle_ps(s[4 * n + 1], s[4 * n + 3], 0xee);
  }
  QUIRE_UNROLL
  for (int n = 0; n < 4; ++n) {
    x[n] = _mm256_permute2f128_ps(u[n], u[n + 4], 0x20);
    x[n + 4] = _mm256_permute2f128_ps(u[n], u[n + 4], 0x31);
  }
}
