// How a product is cut into pieces of work: blocks of weight rows by blocks of activation rows. The cut
// depends on the shapes alone, and an output element is computed whole in one block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/products.h"
#include "tensor/weight.h"

namespace quire::ops::cpu {

class BlockPlan {
 public:
  struct Block {
    std::int64_t out = 0, outs = 0;  // weight rows
    std::int64_t row = 0, rows = 0;  // activation rows
  };
  BlockPlan() = default;
  BlockPlan(const WeightView& weight, std::int64_t rows) : weight_rows_(weight.rows), rows_(rows) {
    // Few rows: a piece is some 24 KB of weights, one or two microseconds of memory. Many rows: the piece's
    // weights stay in the second-level cache while kRows rows pass.
    const std::int64_t bytes = std::max<std::int64_t>(1, weight.row_bytes);
    outs_ = rows <= 4 ? std::clamp<std::int64_t>(kDecodeBytes / bytes / 16 * 16, 16, 128) : kOuts;
    across_ = (weight_rows_ + outs_ - 1) / outs_;
    down_ = (rows_ + kRows - 1) / kRows;
  }
  std::int64_t items() const { return across_ * down_; }
  // Blocks of the same weights follow each other.
  Block block(std::int64_t item) const {
    const std::int64_t out = item / down_ * outs_, row = item % down_ * kRows;
    return {out, std::min(outs_, weight_rows_ - out), row, std::min(kRows, rows_ - row)};
  }

 private:
  static constexpr std::int64_t kDecodeBytes = 24 << 10;
  static constexpr std::int64_t kOuts = 64;
  static constexpr std::int64_t kRows = 64;
  std::int64_t weight_rows_ = 0, rows_ = 0, outs_ = 1, across_ = 0, down_ = 0;
};

// One block into y (its first element); bias is that of the whole weight, `panel` the thread's own memory.
void multiply_block(const ProductTable& products, const Product& product, const WeightView& weight,
                    const float* bias, const BlockPlan::Block& block, const char* activation,
                    std::int64_t activation_stride, float* y, std::int64_t y_stride, float* panel);

// The product of this weight; a check that there is one and that rows are dense.
const Product& checked_product(const ProductTable& products, const WeightView& weight);

}  // namespace quire::ops::cpu
