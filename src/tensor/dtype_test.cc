#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire {
namespace {

// Walks every pair of neighbouring finite values of a small float type: the middle goes to the even one,
// and the floats next to the middle to the nearer one. With monotony this fixes the whole function.
template <class Bits>
void check_rounding(float (*widen)(Bits), Bits (*round)(float), Bits largest, Bits sign) {
  for (Bits low = 0; low < largest; ++low) {
    const auto high = static_cast<Bits>(low + 1);
    const float a = widen(low);
    const float b = widen(high);
    ASSERT_LT(a, b);
    ASSERT_EQ(round(a), low);
    const auto middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
    const Bits even = (low & 1) ? high : low;
    if (a < middle && middle < b) {
      ASSERT_EQ(round(middle), even) << static_cast<int>(low);
      const float below = std::nextafter(middle, a);
      const float above = std::nextafter(middle, b);
      ASSERT_EQ(round(below), low);
      ASSERT_EQ(round(above), high);
      ASSERT_EQ(round(-middle), static_cast<Bits>(even | sign));
    }
    ASSERT_EQ(round(-a), static_cast<Bits>(low | sign));
    ASSERT_EQ(widen(static_cast<Bits>(low | sign)), -a);
  }
}

TEST(DType, NamesAndBytes) {
  EXPECT_EQ(dtype_bytes(DType::f32), 4u);
  EXPECT_EQ(dtype_bytes(DType::fp8_e4m3), 1u);
  EXPECT_EQ(dtype_bytes(DType::u64), 8u);
  for (int i = 0; i <= static_cast<int>(DType::u64); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_string(to_string(type)), type);
  }
  EXPECT_EQ(dtype_from_string("f33"), std::nullopt);
}

TEST(DType, F16RoundsToNearestEvenEverywhere) {
  check_rounding<std::uint16_t>(f16_to_f32, f32_to_f16, 0x7bff, 0x8000);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_TRUE(std::isinf(f16_to_f32(0x7c00)));
  EXPECT_EQ(f16_to_f32(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
}

TEST(DType, Bf16RoundsToNearestEvenEverywhere) {
  check_rounding<std::uint16_t>(bf16_to_f32, f32_to_bf16, 0x7f7f, 0x8000);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
}

TEST(DType, Fp8RoundsToNearestEvenAndSaturates) {
  check_rounding<std::uint8_t>(fp8_e4m3_to_f32, f32_to_fp8_e4m3, 0x7e, 0x80);
  EXPECT_EQ(fp8_e4m3_to_f32(0x7e), kFp8E4m3Max);
  EXPECT_EQ(fp8_e4m3_to_f32(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(fp8_e4m3_to_f32(0x38), 1.0f);
  for (const float large : {449.0f, 464.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(f32_to_fp8_e4m3(large), 0x7e);
    EXPECT_EQ(f32_to_fp8_e4m3(-large), 0xfe);
  }
}

TEST(DType, NanStaysNan) {
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::nanf("0x7fffff")}) {
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan))));
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
    EXPECT_TRUE(std::isnan(fp8_e4m3_to_f32(f32_to_fp8_e4m3(nan))));
  }
  EXPECT_EQ(f32_to_fp8_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

}  // namespace
}  // namespace quire
