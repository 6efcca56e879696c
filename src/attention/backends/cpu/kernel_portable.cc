// Plain C++ with the compiler's vector extension; built for the baseline of the target.
#include <cstdint>
#include <cstring>

#include "attention/backends/cpu/kernel.h"

namespace quire::attention::cpu {
namespace {

typedef float V4 __attribute__((vector_size(16)));
typedef std::uint32_t U4 __attribute__((vector_size(16)));
typedef std::uint16_t H4 __attribute__((vector_size(8)));
typedef std::uint8_t B4 __attribute__((vector_size(4)));

struct F8 {
  V4 a, b;
};
using F = F8;
constexpr int kLanes = 8;
constexpr int kMicroRows = 2;
constexpr int kElementBytes[kKvElements] = {4, 2, 2, 1};
constexpr float kFp8Unit = 1.0f;
constexpr int kSoftmaxRows = 1;  // side by side
constexpr int kRegisters = 16;
constexpr int kVectorsAtOnce[5] = {0, 4, 2, 2, 1};  // by rows
constexpr int kPanelsAtOnce[5] = {0, 2, 1, 1, 1};
constexpr int kFetchLevel = 2;
constexpr bool kFetchNear = false;  // into the first level, a few rows ahead
constexpr bool kKnownDims = false;  // loops of their own for the usual dims

template <class V>
inline V load_as(const void* p) {
  V x;
  std::memcpy(&x, p, sizeof(V));
  return x;
}
inline V4 as_float(U4 x) { return reinterpret_cast<V4>(x); }
inline U4 as_bits(V4 x) { return reinterpret_cast<U4>(x); }
inline V4 all(float x) { return V4{x, x, x, x}; }

inline F8 load(const float* p) { return {load_as<V4>(p), load_as<V4>(p + 4)}; }
inline void store(float* p, F8 x) { std::memcpy(p, &x, sizeof(F8)); }
inline F8 set8(float x) { return {all(x), all(x)}; }
inline F8 zero8() { return set8(0.0f); }
inline F8 add(F8 x, F8 y) { return {x.a + y.a, x.b + y.b}; }
inline F8 sub(F8 x, F8 y) { return {x.a - y.a, x.b - y.b}; }
inline F8 mul(F8 x, F8 y) { return {x.a * y.a, x.b * y.b}; }
inline F8 div(F8 x, F8 y) { return {x.a / y.a, x.b / y.b}; }
inline F8 fma(F8 x, F8 y, F8 z) { return add(mul(x, y), z); }  // two roundings: the baseline has no FMA

inline V4 widen_f16(U4 x) {
  const V4 value = as_float((x & 0x7fff) << 13) * all(0x1p112f);
  const U4 special = reinterpret_cast<U4>((x & 0x7c00) == 0x7c00) & 0x7f800000;  // infinity, NaN
  return as_float(as_bits(value) | special | (x & 0x8000) << 16);
}
inline V4 widen_fp8(U4 x) {
  const V4 value = as_float((x & 0x7f) << 20) * all(0x1p120f);
  const U4 nan = reinterpret_cast<U4>((x & 0x7f) == 0x7f) & 0x7fc00000;
  return as_float(as_bits(value) | nan | (x & 0x80) << 24);
}

template <class V, class F1>
inline F8 widen8(const char* p, F1 widen) {
  return {widen(__builtin_convertvector(load_as<V>(p), U4)),
          widen(__builtin_convertvector(load_as<V>(p + sizeof(V)), U4))};
}

template <KvElement E>
inline void load16(const void* row, int u, F8& a, F8& b) {
  const char* p = static_cast<const char*>(row) + 16 * u * kElementBytes[E];
  if constexpr (E == kF32) {
    a = {load_as<V4>(p), load_as<V4>(p + 16)};
    b = {load_as<V4>(p + 32), load_as<V4>(p + 48)};
  } else if constexpr (E == kBf16) {
    const U4 x = load_as<U4>(p);
    const U4 y = load_as<U4>(p + 16);
    a = {as_float(x << 16), as_float(y << 16)};
    b = {as_float(x & 0xffff0000), as_float(y & 0xffff0000)};
  } else if constexpr (E == kF16) {
    a = widen8<H4>(p, widen_f16);
    b = widen8<H4>(p + 16, widen_f16);
  } else {
    a = widen8<B4>(p, widen_fp8);
    b = widen8<B4>(p + 8, widen_fp8);
  }
}

// Lane n of the result: ((0+2)+(1+3)) + ((4+6)+(5+7)) over the lanes of x[n]; kernel.inl: tree().
inline F8 sum_chains(const F8 x[8]) {
  float sums[8];
  for (int n = 0; n < 8; ++n) {
    const V4 a = x[n].a;
    const V4 b = x[n].b;
    sums[n] = ((a[0] + a[2]) + (a[1] + a[3])) + ((b[0] + b[2]) + (b[1] + b[3]));
  }
  return load(sums);
}

inline void transpose8(F8 x[8]) {
  float m[8][8];
  for (int n = 0; n < 8; ++n) store(m[n], x[n]);
  for (int n = 0; n < 8; ++n)
    x[n] = {V4{m[0][n], m[1][n], m[2][n], m[3][n]}, V4{m[4][n], m[5][n], m[6][n], m[7][n]}};
}

inline F load_wide(const float* p) { return load(p); }
inline F set(float x) { return set8(x); }
inline float first_lane(F x) { return x.a[0]; }
inline V4 pick(U4 mask, V4 yes, V4 no) { return as_float((mask & as_bits(yes)) | (~mask & as_bits(no))); }
inline F pick(U4 a, U4 b, F yes, F no) { return {pick(a, yes.a, no.a), pick(b, yes.b, no.b)}; }

inline F max(F x, F y) {
  return pick(reinterpret_cast<U4>(x.a > y.a), reinterpret_cast<U4>(x.b > y.b), x, y);
}
inline F select(unsigned bits, F yes, F no) {
  const U4 low{1, 2, 4, 8};
  const U4 high{16, 32, 64, 128};
  return pick(reinterpret_cast<U4>((low & bits) != 0), reinterpret_cast<U4>((high & bits) != 0), yes, no);
}
inline F select_below(F x, float limit, F yes, F no) {
  return pick(reinterpret_cast<U4>(x.a < all(limit)), reinterpret_cast<U4>(x.b < all(limit)), yes, no);
}
inline F zero_where_below(F value, F x, float limit) { return select_below(x, limit, zero8(), value); }
inline F with_sign_of(F value, F sign) {
  const U4 bit{0x80000000u, 0x80000000u, 0x80000000u, 0x80000000u};
  return pick(bit, bit, sign, value);
}
// value * 2^n, n held in the low bits of `shifted` (kernel.inl: exp2_nonpositive).
inline F add_exponent(F value, F shifted) {
  return {as_float(as_bits(value.a) + (as_bits(shifted.a) << 23)),
          as_float(as_bits(value.b) + (as_bits(shifted.b) << 23))};
}
inline F max_of_lanes(F x) {
  float top = x.a[0];
  for (int n = 1; n < 4; ++n) top = x.a[n] > top ? x.a[n] : top;
  for (int n = 0; n < 4; ++n) top = x.b[n] > top ? x.b[n] : top;
  return set(top);
}
inline float sum_of_lanes(F x) {
  const V4 y = x.a + x.b;
  return (y[0] + y[2]) + (y[1] + y[3]);
}

#include "attention/backends/cpu/keys_of_8.h"

// The kernels follow what they use.
#include "attention/backends/cpu/kernel.inl"

}  // namespace

const Kernels& kernels_portable() {
  static constexpr Kernels kKernels = kTable;
  return kKernels;
}

}  // namespace quire::attention::cpu
