// Arithmetic on single rows, compiled once per instruction set from row_math_impl.h and chosen at run
// time. Every function works on one row alone, on float32, in a fixed order for a given level.
#pragma once

#include <cstdint>

#include "platform/cpu/isa.h"

namespace quire::ops::cpu {

struct RowMath {
  // x += add unless add is null; then y = x / rms(x) * weight unless y is null. y may be x.
  void (*rms_norm)(float* x, const float* add, const float* weight, float eps, float* y, std::int64_t n);
  // y = act(gate) * up, the three activations of ops.h; y may be gate.
  void (*silu)(const float* gate, const float* up, float* y, std::int64_t n);
  void (*gelu_tanh)(const float* gate, const float* up, float* y, std::int64_t n);
  void (*swiglu_clamp)(const float* gate, const float* up, float* y, std::int64_t n, float limit);
  // x = cap * tanh(scale * x / cap), or scale * x when cap is 0.
  void (*softcap)(float* x, std::int64_t n, float scale, float cap);
  // y += weight * x.
  void (*add_scaled)(const float* x, float weight, float* y, std::int64_t n);
  // The largest value; NaN is passed over (all NaN or empty: -infinity).
  float (*max)(const float* x, std::int64_t n);
  // Sum of exp(x - shift), in double.
  double (*sum_exp)(const float* x, std::int64_t n, float shift);
  // y = exp(x - shift); y may be x.
  void (*exp_shifted)(const float* x, float shift, float* y, std::int64_t n);
  // (x_i, x_{i+half}) rotated by (cos_i, sin_i), in place.
  void (*rotate_half)(float* x, const float* cosine, const float* sine, std::int64_t half);
  // y = bf16 or f16 of x, rounded to nearest even; NaN stays NaN. to_f16 is null at the portable level.
  void (*to_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*to_f16)(const float* x, std::uint16_t* y, std::int64_t n);
  // y = the n values of packed weights, exactly. 4- and 8-bit blocks are ggml's of 32 values; e4m3 comes
  // without its scales. from_f16, from_e4m3 and the block formats are null at the portable level.
  void (*from_bf16)(const void* x, float* y, std::int64_t n);
  void (*from_f16)(const void* x, float* y, std::int64_t n);
  void (*from_e4m3)(const void* x, float* y, std::int64_t n);
  void (*from_q8_0)(const void* x, float* y, std::int64_t n);
  void (*from_q4_0)(const void* x, float* y, std::int64_t n);
  void (*from_q4_1)(const void* x, float* y, std::int64_t n);
  // y[0..4) = four packed rows, row_bytes apart, by one float32 row, without the way through memory and in
  // the order of ggml's float32 tiles (one vector of partial sums a row, then its halves): the bits are those
  // of a panel. n is a multiple of the vector. Four at a time hide the latency of the sums. Null at the
  // portable level.
  using DotFour = void (*)(const void* w, std::int64_t row_bytes, const float* x, std::int64_t n, float* y);
  DotFour dot_bf16, dot_f16, dot_e4m3, dot_q8_0, dot_q4_0, dot_q4_1;
};

const RowMath& row_math(platform::cpu::Isa isa);
// to_f16 at any level.
void row_to_f16(const RowMath& math, const float* x, std::uint16_t* y, std::int64_t n);

// The copies; row_math() picks.
namespace sse42 {
extern const RowMath kRowMath;
}
namespace avx2 {
extern const RowMath kRowMath;
}
namespace avx512 {
extern const RowMath kRowMath;
}

}  // namespace quire::ops::cpu
