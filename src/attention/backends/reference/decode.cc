#include "attention/backends/reference/decode.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::attention::reference {
namespace {

// f16 and fp8 are small enough to look up; the tables are filled from decode_bits.
const double* f16_table() {
  static const auto* const table = [] {
    auto* t = new std::array<double, 1 << 16>;
    for (std::uint32_t i = 0; i < t->size(); ++i) (*t)[i] = decode_bits(i, 5, 10, true);
    return t;
  }();
  return table->data();
}

const double* fp8_table() {
  static const auto table = [] {
    std::array<double, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) t[i] = decode_fp8_e4m3(static_cast<std::uint8_t>(i));
    return t;
  }();
  return table.data();
}

// A float's bits cut to their upper 16, to nearest even; NaN stays NaN.
std::uint16_t to_bf16(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::uint32_t kept = bits >> 16;
  const std::uint32_t cut = bits & 0xffff;
  const bool up = cut > 0x8000 || (cut == 0x8000 && (kept & 1));
  return static_cast<std::uint16_t>(kept + up);
}

std::uint16_t to_f16(double value) {
  if (std::isnan(value)) return 0x7e00;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return sign | 0x7c00;  // rounds past the largest, 65504
  if (magnitude < std::ldexp(1.0, -14))            // subnormal: multiples of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  // 11 significant bits; a carry into the exponent is what addition does anyway.
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  return sign | static_cast<std::uint16_t>(((exponent + 13) << 10) + mantissa);
}

template <class Bits, class Convert>
void load_each(const void* base, std::int64_t count, std::int64_t stride, double* values, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(base) + i * stride, sizeof(bits));
    values[i] = convert(bits);
  }
}

}  // namespace

double decode_bits(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (mantissa_bits + exponent_bits)) & 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (has_infinity && exponent == (1 << exponent_bits) - 1)
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  else
    value =
        std::ldexp(static_cast<double>(mantissa + (1u << mantissa_bits)), exponent - bias - mantissa_bits);
  return negative ? -value : value;
}

double decode_fp8_e4m3(std::uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();  // OCP: no infinity
  return decode_bits(bits, 4, 3, false);
}

void load(DType type, const void* base, std::int64_t count, std::int64_t stride, double* values) {
  switch (type) {
    case DType::f32:
      return load_each<float>(base, count, stride, values, [](float x) { return x; });
    case DType::bf16:
      return load_each<std::uint16_t>(base, count, stride, values, [](std::uint16_t x) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
      });
    case DType::f16:
      return load_each<std::uint16_t>(base, count, stride, values,
                                      [table = f16_table()](std::uint16_t x) { return table[x]; });
    case DType::fp8_e4m3:
      return load_each<std::uint8_t>(base, count, stride, values,
                                     [table = fp8_table()](std::uint8_t x) { return table[x]; });
    default:
      break;
  }
  QUIRE_CHECK(false, "the reference row reads no elements of type {}", static_cast<int>(type));
}

void store(DType type, void* base, std::int64_t index, double value) {
  switch (type) {
    case DType::f32:
      static_cast<float*>(base)[index] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(base)[index] = to_bf16(value);
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(base)[index] = to_f16(value);
      return;
    default:
      break;
  }
  QUIRE_CHECK(false, "the reference row writes no elements of type {}", static_cast<int>(type));
}

}  // namespace quire::attention::reference
