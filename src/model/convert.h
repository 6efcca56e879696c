// Conversion of stored tensors to float32 in memory of ours: one strided gather does expanding,
// transposing, parting and stacking. Sources are plain types of a file, or the numbers of dummy weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/weight.h"

namespace quire::model {

// Dummy weights: element i of a tensor is a function of the seed, the tensor's name and i only, so they do
// not depend on threads or on how a tensor is laid out in memory.
struct DummySource {
  std::uint64_t key = 0;  // of seed and name
  float centre = 0.0f;
  float spread = 0.0f;  // uniform in [centre - spread, centre + spread)
};

// target[r * cols + c] = add + source[begin + r * row_step + c * col_step], steps in elements.
struct Conversion {
  const std::byte* source = nullptr;        // no alignment needed; null: dummy
  WeightFormat format = WeightFormat::f32;  // f32, f16 or bf16
  DummySource dummy;
  std::int64_t begin = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float add = 0.0f;
  float* target = nullptr;
};

// All of them, on `threads` threads; returns when done. Large ones are cut into stretches of rows.
void run_conversions(const std::vector<Conversion>& conversions, int threads);

}  // namespace quire::model
