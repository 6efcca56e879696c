// Conversion of stored tensors to what the device multiplies, in memory of ours: one strided gather does
// expanding, transposing, parting and stacking. Sources are a file's types, or the numbers of dummy weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "platform/platform.h"
#include "tensor/dtype.h"
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
  std::string_view name;              // of the tensor, borrowed, for messages
  const std::byte* source = nullptr;  // no alignment needed; null: dummy
  WeightFormat format =
      WeightFormat::f32;  // blocks: whole rows only (col_step 1, begin and row_step of cols)
  DummySource dummy;
  std::int64_t begin = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 1;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float add = 0.0f;
  DType type = DType::f32;  // of the target: f32, bf16, or fp8_e4m3 (of fp8_e4m3 in whole rows, or dummy)
  void* target = nullptr;   // device memory, dense
};

// All of them, on `threads` threads; returns when done. Large ones are cut into stretches of rows. Where the
// host cannot write device memory, every thread converts into page-locked memory and copies on a stream of
// its own, one stretch converting while the last one travels. An e4m3 matrix that holds NaN is refused, with
// all of them done: the file is damaged.
Status run_conversions(const std::vector<Conversion>& conversions, platform::Device& device, int threads);

}  // namespace quire::model
