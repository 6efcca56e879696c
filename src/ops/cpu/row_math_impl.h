// The body of row_math_<level>.cc: included once per instruction set with QUIRE_LEVEL set and the level's
// compile flags. Vectors are the compiler's own vector types, as wide as the level has them.
//
// No inline function of anybody else may be called here: its copy would be compiled for this level and the
// linker could use it for the whole program.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "ops/cpu/row_math.h"

namespace quire::ops::cpu::QUIRE_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IVec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UVec __attribute__((vector_size(4 * kLanes)));
typedef double DVec __attribute__((vector_size(8 * kLanes)));

inline Vec load(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline void store(float* p, Vec v) { memcpy(p, &v, sizeof(v)); }
inline Vec splat(float x) { return x - Vec{}; }
// The first n < kLanes floats, the rest `fill`.
inline Vec load_part(const float* p, int64_t n, float fill) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}
inline void store_part(float* p, Vec v, int64_t n) {
  float lanes[kLanes];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
inline float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// y[i] = f(x[i]) and y[i] = f(a[i], b[i]) over a row.
template <class F>
inline void map(const float* x, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (i < n) store_part(y + i, f(load_part(x + i, n - i, 0.0f)), n - i);
}
template <class F>
inline void map2(const float* a, const float* b, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(a + i), load(b + i)));
  if (i < n) store_part(y + i, f(load_part(a + i, n - i, 0.0f), load_part(b + i, n - i, 0.0f)), n - i);
}

// exp to within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN stays NaN.
// exp(x) = 2^k exp(r), |r| <= ln 2 / 2, ln 2 in two parts, exp(r) by its series to the seventh power.
inline Vec exp(Vec x) {
  const Vec low = splat(-87.33654f), high = splat(88.72283f);
  Vec bounded = x < low ? low : x;
  bounded = bounded > high ? high : bounded;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec k = (bounded * splat(1.44269504f) + magic) - magic;
  const Vec r = (bounded - k * splat(0.693359375f)) - k * splat(-2.12194440e-4f);
  Vec p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  // k is up to 128, one more than an exponent holds: scale in two steps.
  const IVec whole = __builtin_convertvector(k, IVec);
  const IVec half = whole >> 1;
  const Vec scale1 = (Vec)((half + 127) << 23);
  const Vec scale2 = (Vec)((whole - half + 127) << 23);
  Vec result = p * scale1 * scale2;
  result = x < low ? splat(0.0f) : result;
  result = x > high ? splat(__builtin_inff()) : result;
  return x != x ? x : result;
}

inline Vec sigmoid(Vec x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

void rms_norm(float* x, const float* add, const float* weight, float eps, float* y, int64_t n) {
  Vec squares0 = {}, squares1 = {};
  int64_t i = 0;
  if (add) {
    for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) + load(add + i));
    for (; i < n; ++i) x[i] += add[i];
  }
  if (!y) return;
  for (i = 0; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec a = load(x + i), b = load(x + i + kLanes);
    squares0 += a * a;
    squares1 += b * b;
  }
  for (; i < n; i += kLanes) {
    const Vec a = i + kLanes <= n ? load(x + i) : load_part(x + i, n - i, 0.0f);
    squares0 += a * a;
  }
  const float mean = sum(squares0 + squares1) / static_cast<float>(n);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  map2(x, weight, y, n, [=](Vec v, Vec w) { return v * factor * w; });
}

void silu(const float* gate, const float* up, float* y, int64_t n) {
  map2(gate, up, y, n, [](Vec g, Vec u) { return g * sigmoid(g) * u; });
}

// 0.5 g (1 + tanh(u)) = g sigmoid(2u).
void gelu_tanh(const float* gate, const float* up, float* y, int64_t n) {
  map2(gate, up, y, n, [](Vec g, Vec u) {
    const Vec inner = splat(0.7978845608f) * (g + splat(0.044715f) * g * g * g);
    return g * sigmoid(inner + inner) * u;
  });
}

void swiglu_clamp(const float* gate, const float* up, float* y, int64_t n, float limit) {
  const Vec high = splat(limit), low = splat(-limit);
  map2(gate, up, y, n, [=](Vec g, Vec u) {
    g = g > high ? high : g;
    u = u > high ? high : u;
    u = u < low ? low : u;
    return (u + splat(1.0f)) * (g * sigmoid(splat(1.702f) * g));
  });
}

// tanh(z) = 1 - 2 / (exp(2z) + 1); near 0, where that cancels, its odd series.
inline Vec tanh(Vec z) {
  const Vec square = z * z;
  const Vec series =
      z * (splat(1.0f) + square * (splat(-0.33333333f) +
                                   square * (splat(0.13333333f) + square * (splat(-0.053968254f) +
                                                                            square * splat(0.021869488f)))));
  const Vec whole = splat(1.0f) - splat(2.0f) / (exp(z + z) + splat(1.0f));
  return square < splat(0.04f) ? series : whole;
}

void softcap(float* x, int64_t n, float scale, float cap) {
  if (cap == 0.0f) return map(x, x, n, [=](Vec v) { return v * scale; });
  map(x, x, n, [=](Vec v) { return cap * tanh(scale * v / cap); });
}

void add_scaled(const float* x, float weight, float* y, int64_t n) {
  map2(x, y, y, n, [=](Vec v, Vec old) { return old + weight * v; });
}

float max(const float* x, int64_t n) {
  const float lowest = -__builtin_inff();
  Vec best = splat(lowest);
  int64_t i = 0;
  for (; i < n; i += kLanes) {
    const Vec v = i + kLanes <= n ? load(x + i) : load_part(x + i, n - i, lowest);
    best = v > best ? v : best;
  }
  float lanes[kLanes];
  store(lanes, best);
  float result = lowest;
  for (float lane : lanes) result = lane > result ? lane : result;
  return result;
}

double sum_exp(const float* x, int64_t n, float shift) {
  DVec total = {};
  int64_t i = 0;
  for (; i < n; i += kLanes) {
    const Vec v = i + kLanes <= n ? load(x + i) : load_part(x + i, n - i, -__builtin_inff());
    total += __builtin_convertvector(exp(v - shift), DVec);
  }
  double result = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) result += total[lane];
  return result;
}

void exp_shifted(const float* x, float shift, float* y, int64_t n) {
  map(x, y, n, [=](Vec v) { return exp(v - shift); });
}

void rotate_half(float* x, const float* cosine, const float* sine, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[half + i] = b * cosine[i] + a * sine[i];
  }
}

inline uint16_t bf16_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void to_bf16(const float* x, uint16_t* y, int64_t n) {
  typedef uint16_t HVec __attribute__((vector_size(2 * kLanes)));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec value = load(x + i);
    const UVec bits = (UVec)value;
    const UVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const UVec quiet = (bits >> 16) | 64u;
    const HVec half = __builtin_convertvector(value != value ? quiet : rounded, HVec);
    memcpy(y + i, &half, sizeof(half));
  }
  for (; i < n; ++i) y[i] = bf16_of(x[i]);
}

#if defined(__F16C__)
void to_f16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), half);
  }
  for (; i < n; ++i) {
    y[i] = static_cast<uint16_t>(
        _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x[i]), _MM_FROUND_TO_NEAREST_INT), 0));
  }
}
#else
// Null: the caller converts one by one (tensor/dtype.h).
constexpr void (*to_f16)(const float*, uint16_t*, int64_t) = nullptr;
#endif

// ---- packed weights to float32 ----
//
// A format unpacks one block of values, vector by vector, into a sink: one that stores the values, or one
// that multiplies them with a row of activations right away.

struct Stored {
  float* y;
  inline void take(int64_t at, Vec value) { store(y + at, value); }
};

// Every whole block of the row; returns the values done.
template <class Format>
inline int64_t unpack(const void* x, float* y, int64_t n) {
  Stored sink{y};
  const char* block = static_cast<const char*>(x);
  int64_t i = 0;
  for (; i + Format::kValues <= n; i += Format::kValues, block += Format::kBytes)
    Format::block(block, i, sink);
  return i;
}

struct Bf16 {
  static constexpr int kValues = kLanes, kBytes = 2 * kLanes;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
    typedef uint16_t HVec __attribute__((vector_size(2 * kLanes)));
    HVec half;
    memcpy(&half, p, sizeof(half));
    sink.take(at, (Vec)(__builtin_convertvector(half, UVec) << 16));
  }
};

void from_bf16(const void* x, float* y, int64_t n) {
  const uint16_t* halves = static_cast<const uint16_t*>(x);
  for (int64_t i = unpack<Bf16>(x, y, n); i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    memcpy(y + i, &bits, sizeof(bits));
  }
}

#if defined(__F16C__)
inline float half_at(const char* p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof(bits));
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

struct F16 {
  static constexpr int kValues = kLanes, kBytes = 2 * kLanes;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
#if defined(__AVX512F__)
    sink.take(at, (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#else
    sink.take(at, (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#endif
  }
};

void from_f16(const void* x, float* y, int64_t n) {
  for (int64_t i = unpack<F16>(x, y, n); i < n; ++i) y[i] = half_at(static_cast<const char*>(x) + 2 * i);
}

// By way of f16, whose exponent has one bit more and a bias larger by 8: there the same bits are 2^-8 of the
// value. NaN (all ones) becomes f16's.
struct E4m3 {
  static constexpr int kValues = kLanes, kBytes = kLanes;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
#if defined(__AVX512F__)
    const __m256i high =
        _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 8);
    const __m256i magnitude = _mm256_and_si256(high, _mm256_set1_epi16(0x7f00));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f00));
    const __m256i sign = _mm256_xor_si256(high, magnitude);
    const __m256i quiet = _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00));
    const __m256i half = _mm256_or_si256(_mm256_or_si256(sign, _mm256_srli_epi16(magnitude, 1)), quiet);
    sink.take(at, (Vec)_mm512_cvtph_ps(half) * splat(256.0f));
#else
    const __m128i high =
        _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8);
    const __m128i magnitude = _mm_and_si128(high, _mm_set1_epi16(0x7f00));
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
    const __m128i sign = _mm_xor_si128(high, magnitude);
    const __m128i quiet = _mm_and_si128(nan, _mm_set1_epi16(0x7e00));
    const __m128i half = _mm_or_si128(_mm_or_si128(sign, _mm_srli_epi16(magnitude, 1)), quiet);
    sink.take(at, (Vec)_mm256_cvtph_ps(half) * splat(256.0f));
#endif
  }
};

void from_e4m3(const void* x, float* y, int64_t n) {
  const int64_t done = unpack<E4m3>(x, y, n);
  if (done == n) return;
  char last[kLanes] = {};
  memcpy(last, static_cast<const char*>(x) + done, static_cast<size_t>(n - done));
  float values[kLanes];
  unpack<E4m3>(last, values, kLanes);
  memcpy(y + done, values, static_cast<size_t>(n - done) * sizeof(float));
}

// Values at..at + 16: scale * bytes + offset.
template <bool kSigned, class Sink>
inline void spread16(__m128i bytes, Vec scale, Vec offset, int64_t at, Sink& sink) {
#if defined(__AVX512F__)
  const __m512i wide = kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
  sink.take(at, (Vec)_mm512_cvtepi32_ps(wide) * scale + offset);
#else
  const __m128i high = _mm_srli_si128(bytes, 8);
  const __m256i wide0 = kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  const __m256i wide1 = kSigned ? _mm256_cvtepi8_epi32(high) : _mm256_cvtepu8_epi32(high);
  sink.take(at, (Vec)_mm256_cvtepi32_ps(wide0) * scale + offset);
  sink.take(at + 8, (Vec)_mm256_cvtepi32_ps(wide1) * scale + offset);
#endif
}

struct Q8_0 {
  static constexpr int kValues = 32, kBytes = 34;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
    const Vec scale = splat(half_at(p));
    spread16<true>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2)), scale, Vec{}, at, sink);
    spread16<true>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 18)), scale, Vec{}, at + 16, sink);
  }
};

// The low halves of 16 bytes are values 0..15 of a block, the high halves 16..31.
template <class Sink>
inline void spread_nibbles(const char* packed, float scale, float offset, int64_t at, Sink& sink) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i low_mask = _mm_set1_epi8(15);
  const Vec scales = splat(scale), offsets = splat(offset);
  spread16<false>(_mm_and_si128(bytes, low_mask), scales, offsets, at, sink);
  spread16<false>(_mm_and_si128(_mm_srli_epi16(bytes, 4), low_mask), scales, offsets, at + 16, sink);
}

struct Q4_0 {
  static constexpr int kValues = 32, kBytes = 18;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
    const float scale = half_at(p);
    spread_nibbles(p + 2, scale, -8.0f * scale, at, sink);
  }
};

struct Q4_1 {
  static constexpr int kValues = 32, kBytes = 20;
  template <class Sink>
  static inline void block(const char* p, int64_t at, Sink& sink) {
    spread_nibbles(p + 4, half_at(p), half_at(p + 2), at, sink);
  }
};

void from_q8_0(const void* x, float* y, int64_t n) { unpack<Q8_0>(x, y, n); }
void from_q4_0(const void* x, float* y, int64_t n) { unpack<Q4_0>(x, y, n); }
void from_q4_1(const void* x, float* y, int64_t n) { unpack<Q4_1>(x, y, n); }

// One vector of partial sums, added up as ggml's tiles do it.
struct Multiplied {
  const float* x;
#if defined(__AVX512F__)
  __m512 sums = _mm512_setzero_ps();
  inline void take(int64_t at, Vec value) {
    sums = _mm512_fmadd_ps((__m512)value, _mm512_loadu_ps(x + at), sums);
  }
  inline float sum() const { return _mm512_reduce_add_ps(sums); }
#else
  __m256 sums = _mm256_setzero_ps();
  inline void take(int64_t at, Vec value) {
    sums = _mm256_fmadd_ps((__m256)value, _mm256_loadu_ps(x + at), sums);
  }
  inline float sum() const {
    __m128 half = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
#endif
};

template <class Format>
void dot(const void* w, int64_t row_bytes, const float* x, int64_t n, float* y) {
  Multiplied s0{x}, s1{x}, s2{x}, s3{x};
  const char* p = static_cast<const char*>(w);
  // The rows are read side by side, which the processor does not take for the one long stream that they are.
  const char* ahead = p + 8 * row_bytes;
  for (int64_t i = 0; i < n; i += Format::kValues, p += Format::kBytes) {
    for (const char* stop = ahead + 4 * Format::kBytes; ahead < stop; ahead += 64) __builtin_prefetch(ahead);
    Format::block(p, i, s0);
    Format::block(p + row_bytes, i, s1);
    Format::block(p + 2 * row_bytes, i, s2);
    Format::block(p + 3 * row_bytes, i, s3);
  }
  y[0] = s0.sum(), y[1] = s1.sum(), y[2] = s2.sum(), y[3] = s3.sum();
}
constexpr RowMath::DotFour dot_bf16 = dot<Bf16>, dot_f16 = dot<F16>, dot_e4m3 = dot<E4m3>,
                           dot_q8_0 = dot<Q8_0>, dot_q4_0 = dot<Q4_0>, dot_q4_1 = dot<Q4_1>;
#else
// Null: ggml's own dequantisers and tensor/dtype.h do it.
typedef void (*FromPacked)(const void*, float*, int64_t);
constexpr FromPacked from_f16 = nullptr, from_e4m3 = nullptr, from_q8_0 = nullptr, from_q4_0 = nullptr,
                     from_q4_1 = nullptr;
constexpr RowMath::DotFour dot_bf16 = nullptr, dot_f16 = nullptr, dot_e4m3 = nullptr, dot_q8_0 = nullptr,
                           dot_q4_0 = nullptr, dot_q4_1 = nullptr;
#endif

}  // namespace

extern const RowMath kRowMath = {rms_norm,  silu,     gelu_tanh,   swiglu_clamp, softcap,   add_scaled,
                                 max,       sum_exp,  exp_shifted, rotate_half,  to_bf16,   to_f16,
                                 from_bf16, from_f16, from_e4m3,   from_q8_0,    from_q4_0, from_q4_1,
                                 dot_bf16,  dot_f16,  dot_e4m3,    dot_q8_0,     dot_q4_0,  dot_q4_1};

}  // namespace quire::ops::cpu::QUIRE_LEVEL
