#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

TEST(WeightFormat, BlockSizes) {
  EXPECT_EQ(weight_row_bytes(WeightFormat::f32, 7), 28);
  EXPECT_EQ(weight_row_bytes(WeightFormat::bf16, 7), 14);
  EXPECT_EQ(weight_row_bytes(WeightFormat::fp8_e4m3, 7), 7);
  EXPECT_EQ(weight_row_bytes(WeightFormat::q4_1, 576), 360);
  EXPECT_EQ(weight_row_bytes(WeightFormat::q8_0, 576), 612);
  EXPECT_EQ(weight_row_bytes(WeightFormat::q6_k, 512), 420);
  EXPECT_EQ(weight_row_bytes(WeightFormat::mxfp4, 64), 34);
  EXPECT_EQ(weight_format_info(WeightFormat::iq4_xs).name, "IQ4_XS");
}

TEST(WeightFormat, PlainOnesHaveAnElementType) {
  EXPECT_EQ(element_type(WeightFormat::bf16), DType::bf16);
  EXPECT_EQ(element_type(WeightFormat::fp8_e4m3), DType::fp8_e4m3);
  for (int index = 0; index <= static_cast<int>(WeightFormat::fp8_e4m3); ++index) {
    const WeightFormatInfo& info = weight_format_info(static_cast<WeightFormat>(index));
    const std::optional<DType> type = element_type(info.format);
    EXPECT_EQ(type.has_value(), info.block_elements == 1) << info.name;
    if (type) EXPECT_EQ(static_cast<std::int64_t>(dtype_bytes(*type)), info.block_bytes) << info.name;
  }
}

TEST(WeightFormatDeathTest, PartBlocksAreABug) {
  EXPECT_DEATH(weight_row_bytes(WeightFormat::q4_0, 33), "Q4_0 with cols=33");
}

TEST(WeightView, ExpertOfAStack) {
  const std::array<char, 96> data{};
  const WeightView stack{data.data(), WeightFormat::f32, 2, 4, 16, 3, 32};
  const WeightView second = stack.expert(1);
  EXPECT_EQ(static_cast<const char*>(second.data) - data.data(), 32);
  EXPECT_EQ(second.experts, 1);
  EXPECT_FALSE(second.empty());
  EXPECT_TRUE(WeightView{}.empty());
}

}  // namespace
}  // namespace quire
