// Products with few activation rows. A persistent grid, one block per multiprocessor: a warp keeps a ring of
// stages of weights filled by bulk copies, eight warps multiply them on the tensor cores (weights as the
// 16-row operand, activations as the 8-column one) and add up their shares of the columns at the end of a
// tile of output rows.
//
// The ring is filled before the kernel waits for the one before it: weights never change, so their stream from
// memory goes on through the small kernels between two products.
//
// An output is a sum over its columns in an order that depends on neither the number of rows nor the grid.
#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/gemv.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kConsumers = 8;                    // warps that multiply
constexpr int kThreads = (kConsumers + 1) * 32;  // and one that loads
constexpr int kChunkBytes = 1024;                // of a weight row per stage
constexpr int kRowBytes = kChunkBytes + 64;      // in shared memory: neighbours' banks differ
constexpr int kRingBytes = 140 << 10;            // the L1 cache keeps the rest for activations

enum class Kind { bf16, f16, fp8 };

struct Target {
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
struct Args {
  const char* x;           // 16-bit elements
  std::int64_t x_stride;   // bytes
  std::int32_t rows;       // of x
  std::int32_t row_bytes;  // of a weight row
  std::int32_t tiles;
  std::int32_t targets;
  Target target[kMaxTargets];
};

template <int kRowTiles, int kColTiles>
struct Shape {
  static constexpr int kTileRows = 16 * kRowTiles;
  static constexpr int kTokens = 8 * kColTiles;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kSumStride = kTileRows + 4;  // lanes of a warp store to different banks
  static constexpr int kSumFloats = kConsumers * kTokens * kSumStride;
  static constexpr int kSums = kSumFloats * 8 <= (32 << 10) ? 2 : 1;
  static constexpr int kBytes = kStages * kStageBytes + kSums * kSumFloats * 4 + kStages * 16;
};

__device__ __forceinline__ const Target& target_of(const Args& a, int tile) {
  int t = 0;
  while (t + 1 < a.targets && tile >= a.target[t + 1].first_tile) ++t;
  return a.target[t];
}

// Lane r loads row r of every stage; rows past the end load the last one again, so that every stage is whole.
template <class S>
__device__ void load_weights(const Args& a, std::uint32_t ring, std::uint32_t full, std::uint32_t empty) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::uint64_t policy = evict_first_policy();
  int stage = 0;
  std::uint32_t parity = 1;  // the first round finds every stage empty
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    const Target& target = target_of(a, tile);
    const int row = min((tile - target.first_tile) * S::kTileRows + lane, target.rows - 1);
    const char* source = target.weight + row * target.row_bytes;
    for (int at = 0; at < a.row_bytes; at += kChunkBytes) {
      const auto bytes = static_cast<std::uint32_t>(min(kChunkBytes, a.row_bytes - at));
      barrier_wait(empty + stage * 8, parity);
      if (lane == 0) barrier_expect(full + stage * 8, bytes * S::kTileRows);
      __syncwarp();
      if (lane < S::kTileRows)
        bulk_load(ring + stage * S::kStageBytes + lane * kRowBytes, source + at, bytes, full + stage * 8, policy);
      if (++stage == S::kStages) stage = 0, parity ^= 1;
    }
  }
}

// The activations that one lane multiplies with in one stage: per column tile two groups of columns.
template <Kind kKind, int kColTiles>
struct Operand {
  static constexpr int kVectors = kKind == Kind::fp8 ? 2 : 1;  // of eight 16-bit values, per group
  uint4 x[kColTiles][2][kVectors];
};

template <Kind kKind, int kColTiles>
__device__ __forceinline__ Operand<kKind, kColTiles> load_operand(const Args& a, int at, int warp, int g, int t) {
  Operand<kKind, kColTiles> o;
  constexpr int kVectors = Operand<kKind, kColTiles>::kVectors;
#pragma unroll
  for (int n = 0; n < kColTiles; ++n) {
    const int row = n * 8 + g;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int byte = at + warp * 128 + j * 64 + t * 16;  // of the weight row
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        o.x[n][j][v] = make_uint4(0, 0, 0, 0);
        if (row < a.rows && byte < a.row_bytes)
          o.x[n][j][v] = *reinterpret_cast<const uint4*>(a.x + row * a.x_stride +
                                                         std::int64_t{byte} * kVectors + v * 16);
      }
    }
  }
  return o;
}

template <Kind kKind, int kRowTiles, int kColTiles>
__device__ __forceinline__ void multiply_stage(float (&sum)[kRowTiles][kColTiles][4], const char* stage,
                                               const Operand<kKind, kColTiles>& o, int at, int row_bytes,
                                               int warp, int g, int t) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int group = warp * 128 + j * 64;
    if (at + group >= row_bytes) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const char* from = stage + (m * 16 + g) * kRowBytes + group + t * 16;
      const uint4 low = *reinterpret_cast<const uint4*>(from);
      const uint4 high = *reinterpret_cast<const uint4*>(from + 8 * kRowBytes);
      if constexpr (kKind == Kind::fp8) {
        const std::uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t l0, l1, h0, h1;
          widen_fp8(l[w], l0, l1);
          widen_fp8(h[w], h0, h1);
#pragma unroll
          for (int n = 0; n < kColTiles; ++n) {
            const uint4& x = o.x[n][j][w / 2];
            mma<false>(sum[m][n], l0, h0, l1, h1, w % 2 ? x.z : x.x, w % 2 ? x.w : x.y);
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < kColTiles; ++n) {
          const uint4& x = o.x[n][j][0];
          mma<kKind == Kind::f16>(sum[m][n], low.x, high.x, low.y, high.y, x.x, x.y);
          mma<kKind == Kind::f16>(sum[m][n], low.z, high.z, low.w, high.w, x.z, x.w);
        }
      }
    }
  }
}

__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers * 32) : "memory");
}

// Adds the warps' shares up in their order and writes the tile.
template <class S, int kRowTiles, int kColTiles>
__device__ __forceinline__ void finish_tile(const Args& a, const Target& target, int first_row,
                                            const float (&sum)[kRowTiles][kColTiles][4], float* sums, int warp,
                                            int g, int t) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColTiles; ++n) {
      float* at = sums + (warp * S::kTokens + n * 8 + 2 * t) * S::kSumStride + m * 16 + g;
      at[0] = sum[m][n][0];
      at[S::kSumStride] = sum[m][n][1];
      at[8] = sum[m][n][2];
      at[S::kSumStride + 8] = sum[m][n][3];
    }
  }
  consumers_sync();
  for (int i = static_cast<int>(threadIdx.x); i < S::kTileRows * a.rows; i += kConsumers * 32) {
    const int row = i % S::kTileRows, token = i / S::kTileRows;
    const int out = first_row + row;
    if (out >= target.rows) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) total += sums[(w * S::kTokens + token) * S::kSumStride + row];
    if (target.scale) total *= target.scale[out];
    if (target.bias) total += target.bias[out];
    store_one(target.y + token * target.y_stride * element_bytes(target.y_type), target.y_type, out, total);
  }
  if constexpr (S::kSums == 1) consumers_sync();
}

template <Kind kKind, int kRowTiles, int kColTiles>
__global__ void __launch_bounds__(kThreads, 1) gemv_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
  using S = Shape<kRowTiles, kColTiles>;
  extern __shared__ __align__(128) char shared[];
  const std::uint32_t ring = shared_address(shared);
  float* sums = reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes);
  const std::uint32_t full = shared_address(sums + S::kSums * S::kSumFloats), empty = full + S::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      barrier_init(full + s * 8, 1);
      barrier_init(empty + s * 8, kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  let_next_start();
  if (warp == kConsumers) return load_weights<S>(a, ring, full, empty);
  wait_for_earlier();

  const int g = lane / 4, t = lane % 4;
  int stage = 0, buffer = 0;
  std::uint32_t parity = 0;
  Operand<kKind, kColTiles> next = load_operand<kKind, kColTiles>(a, 0, warp, g, t);
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    const Target& target = target_of(a, tile);
    float sum[kRowTiles][kColTiles][4] = {};
    for (int at = 0; at < a.row_bytes; at += kChunkBytes) {
      const Operand<kKind, kColTiles> now = next;
      const int after = at + kChunkBytes < a.row_bytes ? at + kChunkBytes : 0;  // every tile has the same
      next = load_operand<kKind, kColTiles>(a, after, warp, g, t);
      barrier_wait(full + stage * 8, parity);
      multiply_stage<kKind, kRowTiles, kColTiles>(sum, shared + stage * S::kStageBytes, now, at, a.row_bytes, warp,
                                                  g, t);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + stage * 8);
      if (++stage == S::kStages) stage = 0, parity ^= 1;
    }
    finish_tile<S>(a, target, (tile - target.first_tile) * S::kTileRows, sum, sums + buffer * S::kSumFloats,
                   warp, g, t);
    if (S::kSums == 2) buffer ^= 1;
  }
#endif
}

template <Kind kKind, int kRowTiles, int kColTiles>
void run(Args& a, const Linear& linear, int multiprocessors, platform::Stream& stream) {
  using S = Shape<kRowTiles, kColTiles>;
  static const bool allowed = [] { return allow_shared(gemv_kernel<kKind, kRowTiles, kColTiles>, S::kBytes), true; }();
  static_cast<void>(allowed);
  a.tiles = 0;
  for (int t = 0; t < a.targets; ++t) {
    a.target[t].first_tile = a.tiles;
    a.tiles += static_cast<std::int32_t>((linear.targets[t].weight.rows + S::kTileRows - 1) / S::kTileRows);
  }
  const auto grid = static_cast<unsigned>(std::min(a.tiles, multiprocessors));
  launch(stream, gemv_kernel<kKind, kRowTiles, kColTiles>, dim3(grid), dim3(kThreads), S::kBytes, 1, a);
}

// Tiles of 32 output rows read the activations half as often; they pay when many rows would make that reading
// the bottleneck and the coarser cut does not leave multiprocessors idle. In units of weight rows' time.
bool wants_wide_tiles(const Linear& linear, int multiprocessors) {
  const auto rows = static_cast<double>(linear.x.rows());
  const auto cost = [&](int tile_rows) {
    std::int64_t tiles = 0;
    for (int t = 0; t < linear.target_count; ++t)
      tiles += (linear.targets[t].weight.rows + tile_rows - 1) / tile_rows;
    const auto waves = static_cast<double>((tiles + multiprocessors - 1) / multiprocessors);
    // The L2 feeds a multiprocessor about half as fast again as memory does.
    return waves * std::max<double>(tile_rows, (tile_rows + rows) / 1.5);
  };
  return cost(32) < cost(16);
}

template <Kind kKind>
void run_kind(Args& a, const Linear& linear, int multiprocessors, platform::Stream& stream) {
  const bool wide = wants_wide_tiles(linear, multiprocessors);
  if (linear.x.rows() <= 8) {
    wide ? run<kKind, 2, 1>(a, linear, multiprocessors, stream) : run<kKind, 1, 1>(a, linear, multiprocessors, stream);
  } else {
    wide ? run<kKind, 2, 2>(a, linear, multiprocessors, stream) : run<kKind, 1, 2>(a, linear, multiprocessors, stream);
  }
}

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

DType operand_type(WeightFormat format) { return format == WeightFormat::f16 ? DType::f16 : DType::bf16; }

}  // namespace

bool gemv_takes(const Linear& args) {
  const WeightFormat format = args.targets[0].weight.format;
  const bool fp8 = format == WeightFormat::fp8_e4m3;
  if (!fp8 && format != WeightFormat::bf16 && format != WeightFormat::f16) return false;
  if (args.x.rows() > kGemvRows || args.x.dtype != operand_type(format) || !aligned16(args.x.data) ||
      args.x.stride[0] % 8 != 0 || args.x.cols() % (fp8 ? 64 : 32) != 0)
    return false;
  for (int t = 0; t < args.target_count; ++t) {
    const WeightView& weight = args.targets[t].weight;
    if (weight.format != format || !aligned16(weight.data) || weight.row_bytes % 16 != 0) return false;
  }
  return true;
}

void gemv(const Linear& linear, int multiprocessors, platform::Stream& stream) {
  QUIRE_CHECK(gemv_takes(linear), "{} rows of {} columns, format {}", linear.x.rows(), linear.x.cols(),
              weight_format_info(linear.targets[0].weight.format).name);
  Args a{};
  a.x = static_cast<const char*>(linear.x.data);
  a.x_stride = linear.x.stride[0] * 2;
  a.rows = static_cast<std::int32_t>(linear.x.rows());
  const WeightFormat format = linear.targets[0].weight.format;
  a.row_bytes = static_cast<std::int32_t>(weight_row_bytes(format, linear.x.cols()));
  a.targets = linear.target_count;
  for (int t = 0; t < linear.target_count; ++t) {
    const LinearTarget& from = linear.targets[t];
    a.target[t] = {static_cast<const char*>(from.weight.data),
                   from.weight.row_bytes,
                   from.bias,
                   from.weight.row_scale,
                   static_cast<char*>(from.y.data),
                   from.y.stride[0],
                   static_cast<std::int32_t>(from.weight.rows),
                   0,
                   from.y.dtype};
  }
  if (format == WeightFormat::bf16) return run_kind<Kind::bf16>(a, linear, multiprocessors, stream);
  if (format == WeightFormat::f16) return run_kind<Kind::f16>(a, linear, multiprocessors, stream);
  run_kind<Kind::fp8>(a, linear, multiprocessors, stream);
}

}  // namespace quire::ops::cuda
