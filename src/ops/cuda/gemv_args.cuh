// What the kernels for few activation rows share: their arguments, tiles of output rows, the end of a tile.
#pragma once

#include <cstdint>

#include "ops/cuda/device.cuh"
#include "ops/ops.h"

namespace quire::ops::cuda {

enum class GemvKind { bf16, f16, fp8 };

struct GemvTarget {
  const char* weight;
  std::int64_t row_bytes;
  const float* bias;
  const float* scale;
  char* y;
  std::int64_t y_stride;
  std::int32_t rows;
  std::int32_t first_tile;
  DType y_type;
};
struct GemvArgs {
  const char* x;           // 16-bit elements
  std::int64_t x_stride;   // bytes
  const float* x_scale;    // of f16 rows for e4m3 weights; null: x is as given
  std::int32_t rows;       // of x
  std::int32_t row_bytes;  // of a weight row
  std::int32_t tiles;
  std::int32_t targets;
  GemvTarget target[kMaxTargets];
};

__device__ __forceinline__ const GemvTarget& target_of(const GemvArgs& a, int tile) {
  int t = 0;
  while (t + 1 < a.targets && tile >= a.target[t + 1].first_tile) ++t;
  return a.target[t];
}

// One output of one activation row.
__device__ __forceinline__ void store_output(const GemvTarget& target, int token, int out, float sum) {
  if (target.scale) sum *= target.scale[out];
  if (target.bias) sum += target.bias[out];
  store_one(target.y + token * target.y_stride * element_bytes(target.y_type), target.y_type, out, sum);
}

// Tiles of `tile_rows` outputs for every target.
inline void cut_tiles(GemvArgs& a, int tile_rows) {
  a.tiles = 0;
  for (int t = 0; t < a.targets; ++t) {
    a.target[t].first_tile = a.tiles;
    a.tiles += (a.target[t].rows + tile_rows - 1) / tile_rows;
  }
}

// gemv_ring.cu: whether it takes rows of so many columns and their activations fit beside the ring, and the
// launch.
bool ring_takes(GemvKind kind, std::int64_t rows, std::int64_t cols);
// Rows of x that the ring converts to f16 for e4m3 weights. More must be f16 (x_scale set): each of its
// blocks needs all of them.
inline constexpr int kConvertRows = 2;
void run_ring(GemvKind kind, GemvArgs& a, std::int32_t* counters, int multiprocessors,
              platform::Stream& stream);

}  // namespace quire::ops::cuda
