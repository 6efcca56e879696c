#include "model/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tensor/dtype.h"

namespace quire::model {
namespace {

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    auto opened = platform::open_device("cpu", platform::ThreadPlan{});
    device_ = std::move(*opened);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& value : source_) value = normal(random);
    source_[5] = std::numeric_limits<float>::quiet_NaN();
    source_[6] = std::numeric_limits<float>::infinity();
    source_[7] = 1.0f + 0x1p-8f;  // a tie: to even
    source_[8] = 1.0f + 3 * 0x1p-8f;
  }
  Conversion of_source(std::int64_t rows, std::int64_t cols) {
    Conversion c;
    c.source = reinterpret_cast<const std::byte*>(source_.data());
    c.row_step = cols;
    c.rows = rows;
    c.cols = cols;
    return c;
  }
  void run(const Conversion& conversion) { ASSERT_TRUE(run_conversions({conversion}, *device_, 3).ok()); }

  template <class T>
  std::vector<T> dummies(DType type, float spread) {
    std::vector<T> target(60 * 40);
    Conversion c;
    c.dummy = {.key = 9, .centre = 0.0f, .spread = spread};
    c.row_step = 40;
    c.rows = 60;
    c.cols = 40;
    c.type = type;
    c.target = target.data();
    run(c);
    return target;
  }

  std::unique_ptr<platform::Device> device_;
  std::vector<float> source_ = std::vector<float>(60 * 40);
};

TEST_F(ConvertTest, RoundsToBf16AsTheScalarConversionDoes) {
  Conversion c = of_source(60, 40);
  std::vector<std::uint16_t> target(source_.size());
  c.type = DType::bf16;
  c.target = target.data();
  run(c);
  for (std::size_t i = 0; i < source_.size(); ++i) {
    const std::uint16_t expected = f32_to_bf16(source_[i]);
    if (std::isnan(source_[i])) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(target[i])));
    } else {
      EXPECT_EQ(target[i], expected) << source_[i];
    }
  }
}

TEST_F(ConvertTest, TransposesAndAddsBeforeItRounds) {
  Conversion c = of_source(40, 60);  // column r of the source becomes row r
  c.row_step = 1;
  c.col_step = 40;
  c.add = 1.0f;
  c.type = DType::bf16;
  std::vector<std::uint16_t> target(source_.size());
  c.target = target.data();
  run(c);
  for (std::int64_t r = 0; r < 40; ++r)
    for (std::int64_t i = 1; i < 60; ++i)
      EXPECT_EQ(target[r * 60 + i], f32_to_bf16(source_[i * 40 + r] + 1.0f)) << r << " " << i;
}

TEST_F(ConvertTest, Bf16StaysAsStored) {
  std::vector<std::uint16_t> stored(60 * 40), target(60 * 40);
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint16_t>(i * 27);
  Conversion c = of_source(60, 40);
  c.source = reinterpret_cast<const std::byte*>(stored.data());
  c.format = WeightFormat::bf16;
  c.type = DType::bf16;
  c.target = target.data();
  run(c);
  EXPECT_EQ(stored, target);
}

TEST_F(ConvertTest, BlocksAreExpandedRowByRow) {
  constexpr std::int64_t kRows = 3, kCols = 64;
  struct Block {  // Q8_0
    std::uint16_t scale;
    std::int8_t values[32];
  };
  std::vector<Block> blocks(kRows * kCols / 32);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].scale = f32_to_f16(0.5f + static_cast<float>(b));
    for (int i = 0; i < 32; ++i) blocks[b].values[i] = static_cast<std::int8_t>(i * 5 - 70);
  }
  Conversion c;
  c.source = reinterpret_cast<const std::byte*>(blocks.data());
  c.format = WeightFormat::q8_0;
  c.row_step = kCols;
  c.rows = kRows;
  c.cols = kCols;
  for (const DType type : {DType::f32, DType::bf16}) {
    std::vector<float> wide(kRows * kCols);
    std::vector<std::uint16_t> narrow(kRows * kCols);
    c.type = type;
    c.target = type == DType::f32 ? static_cast<void*>(wide.data()) : narrow.data();
    run(c);
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const Block& block = blocks[i / 32];
      const float value = f16_to_f32(block.scale) * block.values[i % 32];
      EXPECT_EQ(type == DType::f32 ? wide[i] : bf16_to_f32(narrow[i]),
                type == DType::f32 ? value : bf16_to_f32(f32_to_bf16(value)));
    }
  }
}

TEST_F(ConvertTest, DummiesAreTheSameNumbersInEveryType) {
  // Over e4m3's zeros, subnormals, normal numbers, and what is over its largest.
  for (const float spread : {1e-3f, 5e-3f, 0.05f, 0.3f, 1.0f, kFp8E4m3Max, 1000.0f}) {
    const auto wide = dummies<float>(DType::f32, spread);
    const auto half = dummies<std::uint16_t>(DType::bf16, spread);
    const auto byte = dummies<std::uint8_t>(DType::fp8_e4m3, spread);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(half[i], f32_to_bf16(wide[i])) << wide[i];
      EXPECT_EQ(byte[i], f32_to_fp8_e4m3(wide[i])) << wide[i];
    }
    EXPECT_NE(wide[0], wide[1]);
  }
}

TEST_F(ConvertTest, E4m3StaysAsStoredAndIsRefusedWithNan) {
  std::vector<std::uint8_t> stored(60 * 40), target(60 * 40);
  for (std::size_t i = 0; i < stored.size(); ++i)
    stored[i] = static_cast<std::uint8_t>(i % 127 + i % 2 * 128);
  Conversion c = of_source(60, 40);
  c.name = "w";
  c.source = reinterpret_cast<const std::byte*>(stored.data());
  c.format = WeightFormat::fp8_e4m3;
  c.type = DType::fp8_e4m3;
  c.target = target.data();
  run(c);
  EXPECT_EQ(target, stored);
  for (const std::uint8_t nan : {0x7f, 0xff}) {
    stored[1234] = nan;
    const Status status = run_conversions({c}, *device_, 3);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, "the F8_E4M3 matrix w holds NaN: the file is damaged");
  }
}

}  // namespace
}  // namespace quire::model
