#include "tensor/dtype.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace quire {
namespace {

struct Row {
  std::string_view name;
  std::size_t bytes;
};

// In the order of DType.
constexpr std::array<Row, 9> kTypes = {{{"f32", 4},
                                        {"bf16", 2},
                                        {"f16", 2},
                                        {"fp8_e4m3", 1},
                                        {"i8", 1},
                                        {"u8", 1},
                                        {"i32", 4},
                                        {"i64", 8},
                                        {"u64", 8}}};

const Row& row_of(DType type) {
  const auto index = static_cast<std::size_t>(type);
  QUIRE_CHECK(index < kTypes.size(), "dtype={}", index);
  return kTypes[index];
}

// Rounds the magnitude of a float32 to a smaller float with `kMantissa` bits and bias `kBias`, to nearest
// even, without limit at the top: the caller looks for overflow. The sum with `magic` lets the float adder
// round subnormal results: there the last place of the sum is the last place of the small type.
template <int kMantissa, int kBias>
std::uint32_t round_magnitude(std::uint32_t magnitude) {
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 - kBias + 1) << 23;
  if (magnitude < kSmallestNormal) {
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(127 - kBias + 1 + kShift) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    return std::bit_cast<std::uint32_t>(sum) - kMagic;
  }
  const std::uint32_t odd = (magnitude >> kShift) & 1u;
  const std::uint32_t rounded = (magnitude + ((1u << (kShift - 1)) - 1u) + odd) >> kShift;
  return rounded - (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
}

// Exact widening of `magnitude` (sign removed, finite).
template <int kMantissa, int kBias>
float widen_magnitude(std::uint32_t magnitude) {
  constexpr std::uint32_t kOne = static_cast<std::uint32_t>(127 - kBias + 1) << 23;  // smallest normal
  if (magnitude < (1u << kMantissa)) {
    const std::uint32_t with_place = kOne + (magnitude << (23 - kMantissa));
    return std::bit_cast<float>(with_place) - std::bit_cast<float>(kOne);
  }
  const std::uint32_t rebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  return std::bit_cast<float>((magnitude << (23 - kMantissa)) + rebias);
}

constexpr std::uint32_t kInfinityBits = 0x7f800000u;

}  // namespace

std::size_t dtype_bytes(DType type) { return row_of(type).bytes; }

std::string_view to_string(DType type) { return row_of(type).name; }

std::optional<DType> dtype_from_string(std::string_view name) {
  for (std::size_t index = 0; index < kTypes.size(); ++index) {
    if (kTypes[index].name == name) return static_cast<DType>(index);
  }
  return std::nullopt;
}

float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // A NaN keeps its sign and upper payload and becomes quiet: rounding could carry it into infinity.
  if ((bits & 0x7fffffffu) > kInfinityBits) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return std::bit_cast<float>(sign | kInfinityBits | ((magnitude & 0x3ffu) << 13));
  }
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(widen_magnitude<10, 15>(magnitude)));
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfinityBits)
    return sign | 0x7e00u | static_cast<std::uint16_t>((magnitude >> 13) & 0x3ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and up round to infinity
  return sign | static_cast<std::uint16_t>(round_magnitude<10, 15>(magnitude));
}

float fp8_e4m3_to_f32(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(widen_magnitude<3, 7>(magnitude)));
}

}  // namespace quire
