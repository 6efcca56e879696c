// Products with few activation rows. A persistent grid, one block per multiprocessor; a block has a tile of
// output rows at a time, and its eight warps share the columns among them. Every warp keeps a ring of stages
// of its share of the weights filled by asynchronous copies, multiplies them on the tensor cores (weights as
// the 16-row operand, activations as the 8-column one), and at the end of a tile the warps' shares are added
// up.
//
// The ring is filled before the kernel waits for the one before it: weights never change, so their stream
// from memory goes on through the small kernels between two products.
//
// The activations lie in shared memory whole where they fit; else each stage brings its columns of them
// along, and tiles are twice as high, so that they are read half as often.
//
// An output is a sum over its columns in an order that depends on neither the number of rows nor the grid.
#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/gemv.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kLineBytes = 128;                   // of a weight row, per warp and stage
constexpr int kChunkBytes = kLineBytes * kWarps;  // and per block

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

// Row tiles of 16 outputs, column tiles of 8 activation rows.
template <Kind kKind_, int kRowTiles_, int kColTiles_, int kStages_, bool kStaged_>
struct Config {
  static constexpr Kind kKind = kKind_;
  static constexpr int kRowTiles = kRowTiles_, kColTiles = kColTiles_, kStages = kStages_;
  static constexpr bool kStaged = kStaged_;                    // activations come with the stages
  static constexpr int kVectors = kKind == Kind::fp8 ? 2 : 1;  // activation bytes per weight byte
  static constexpr int kTileRows = 16 * kRowTiles, kTokens = 8 * kColTiles;
  static constexpr int kXLineBytes = kLineBytes * kVectors;
  static constexpr int kStageBytes = kTileRows * kLineBytes + (kStaged ? kTokens * kXLineBytes : 0);
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSumStride = kTileRows + 4;  // lanes of a warp store to different banks
  static constexpr int kSumFloats = kWarps * kTokens * kSumStride;
  static constexpr int kFixedBytes = kRingBytes + 2 * kSumFloats * 4;
};

// Bytes between whole activation rows in shared memory: neighbours' banks differ.
__host__ __device__ constexpr int resident_stride(int row_bytes) {
  return (row_bytes + 127) / 128 * 128 + 64;
}

__device__ __forceinline__ const Target& target_of(const Args& a, int tile) {
  int t = 0;
  while (t + 1 < a.targets && tile >= a.target[t + 1].first_tile) ++t;
  return a.target[t];
}

__device__ __forceinline__ void copy16(std::uint32_t target, const char* source) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// In a line of 128 bytes the halves change places in every second row, so that eight lanes that read two rows
// meet every bank once.
__device__ __forceinline__ int line_offset(int row, int byte) {
  return row * kLineBytes + (byte ^ ((row & 1) << 6));
}

// Where a warp's next stage of weights comes from: the tiles of the block, chunk by chunk.
template <class C>
struct Feed {
  const Args& a;
  int tile, at = 0, first = 0, lane_byte, lane_row;
  const Target* target = nullptr;

  __device__ Feed(const Args& args, int warp, int lane)
      : a(args),
        tile(static_cast<int>(blockIdx.x)),
        lane_byte(warp * kLineBytes + lane % 8 * 16),
        lane_row(lane / 8) {
    open();
  }
  __device__ void open() {
    if (tile >= a.tiles) return;
    target = &target_of(a, tile);
    first = (tile - target->first_tile) * C::kTileRows;
  }
  __device__ void advance() {
    at += kChunkBytes;
    if (at < a.row_bytes) return;
    at = 0;
    tile += static_cast<int>(gridDim.x);
    open();
  }
  // Rows past the weight's end repeat its last one; their outputs are not stored.
  __device__ void load(std::uint32_t stage) const {
    if (tile >= a.tiles || at + lane_byte >= a.row_bytes) return;
    const char* column = target->weight + at + lane_byte;
#pragma unroll
    for (int i = 0; i < C::kTileRows / 4; ++i) {
      const int row = i * 4 + lane_row;
      const std::int64_t from = min(first + row, target->rows - 1) * target->row_bytes;
      copy16(stage + static_cast<std::uint32_t>(line_offset(row, lane_byte % kLineBytes)), column + from);
    }
  }
  // The activations of the same columns, behind the weights.
  __device__ void load_activations(std::uint32_t stage) const {
    if (tile >= a.tiles) return;
    constexpr int kLanes = C::kXLineBytes / 16;  // of a row
    const int lane = static_cast<int>(threadIdx.x % 32), byte = lane % kLanes * 16;
    const int column = (at + lane_byte / kLineBytes * kLineBytes) * C::kVectors + byte;
    if (column >= a.row_bytes * C::kVectors) return;
#pragma unroll
    for (int i = 0; i < C::kTokens * kLanes / 32; ++i) {
      const int row = i * (32 / kLanes) + lane / kLanes;
      if (row < a.rows)
        copy16(stage + static_cast<std::uint32_t>(C::kTileRows * kLineBytes + row * C::kXLineBytes +
                                                  (byte ^ ((row & 1) << 6))),
               a.x + row * a.x_stride + column);
    }
  }
};

// One stage's products. `x`: what this lane's activation row has at the stage's first column (swizzled when
// it came with the stage); `live`: whether the lane has a row.
template <class C>
__device__ __forceinline__ void multiply_stage(float (&sum)[C::kRowTiles][C::kColTiles][4], const char* stage,
                                               const char* const (&x)[C::kColTiles], int flip,
                                               const bool (&live)[C::kColTiles], int left, int g, int t) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (j * 64 >= left) return;
    uint4 b[C::kColTiles][C::kVectors];
#pragma unroll
    for (int n = 0; n < C::kColTiles; ++n) {
#pragma unroll
      for (int v = 0; v < C::kVectors; ++v) {
        b[n][v] = make_uint4(0, 0, 0, 0);
        const int byte = (j * 64 + t * 16) * C::kVectors + v * 16;
        if (live[n]) b[n][v] = *reinterpret_cast<const uint4*>(x[n] + (byte ^ flip));
      }
    }
#pragma unroll
    for (int m = 0; m < C::kRowTiles; ++m) {
      const uint4 low = *reinterpret_cast<const uint4*>(stage + line_offset(m * 16 + g, j * 64 + t * 16));
      const uint4 high =
          *reinterpret_cast<const uint4*>(stage + line_offset(m * 16 + g + 8, j * 64 + t * 16));
      if constexpr (C::kKind == Kind::fp8) {
        const std::uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t l0, l1, h0, h1;
          widen_fp8(l[w], l0, l1);
          widen_fp8(h[w], h0, h1);
#pragma unroll
          for (int n = 0; n < C::kColTiles; ++n) {
            const uint4& v = b[n][w / 2];
            mma<false>(sum[m][n], l0, h0, l1, h1, w % 2 ? v.z : v.x, w % 2 ? v.w : v.y);
          }
        }
      } else {
        constexpr bool kHalf = C::kKind == Kind::f16;
#pragma unroll
        for (int n = 0; n < C::kColTiles; ++n) {
          const uint4& v = b[n][0];
          mma<kHalf>(sum[m][n], low.x, high.x, low.y, high.y, v.x, v.y);
          mma<kHalf>(sum[m][n], low.z, high.z, low.w, high.w, v.z, v.w);
        }
      }
    }
  }
}

// Adds the warps' shares up in their order and writes the tile.
template <class C>
__device__ __forceinline__ void finish_tile(const Args& a, int tile,
                                            const float (&sum)[C::kRowTiles][C::kColTiles][4], float* sums,
                                            int warp, int g, int t) {
  const Target& target = target_of(a, tile);
  const int first = (tile - target.first_tile) * C::kTileRows;
#pragma unroll
  for (int m = 0; m < C::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < C::kColTiles; ++n) {
      float* at = sums + (warp * C::kTokens + n * 8 + 2 * t) * C::kSumStride + m * 16 + g;
      at[0] = sum[m][n][0];
      at[C::kSumStride] = sum[m][n][1];
      at[8] = sum[m][n][2];
      at[C::kSumStride + 8] = sum[m][n][3];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < C::kTileRows * a.rows; i += kThreads) {
    const int row = i % C::kTileRows, token = i / C::kTileRows;
    const int out = first + row;
    if (out >= target.rows) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[(w * C::kTokens + token) * C::kSumStride + row];
    if (target.scale) total *= target.scale[out];
    if (target.bias) total += target.bias[out];
    store_one(target.y + token * target.y_stride * element_bytes(target.y_type), target.y_type, out, total);
  }
}

// All activation rows into shared memory, by the whole block; many loads in flight.
__device__ __forceinline__ void load_resident(const Args& a, char* x, int x_bytes, int stride) {
  const int per_row = x_bytes / 16, pieces = per_row * a.rows;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    const int row = i / per_row, piece = i - row * per_row;
    *reinterpret_cast<uint4*>(x + row * stride + piece * 16) =
        *reinterpret_cast<const uint4*>(a.x + row * a.x_stride + piece * 16);
  }
  __syncthreads();
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) gemv_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared + C::kRingBytes);
  char* resident = shared + C::kFixedBytes;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, t = lane % 4;
  char* ring = shared + warp * C::kStages * C::kStageBytes;
  const std::uint32_t ring_address = shared_address(ring);
  const auto stage_address = [&](int s) {
    return ring_address + static_cast<std::uint32_t>(s * C::kStageBytes);
  };
  let_next_start();
  Feed<C> feed(a, warp, lane);
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) {
    feed.load(stage_address(s));
    commit_copies();
    feed.advance();
  }
  wait_for_earlier();
  const int x_bytes = a.row_bytes * C::kVectors, x_stride = resident_stride(x_bytes);
  if constexpr (C::kStaged) {
    Feed<C> again(a, warp, lane);
#pragma unroll
    for (int s = 0; s < C::kStages - 1; ++s) {
      again.load_activations(stage_address(s));
      commit_copies();
      again.advance();
    }
  } else {
    load_resident(a, resident, x_bytes, x_stride);
  }
  bool live[C::kColTiles];
#pragma unroll
  for (int n = 0; n < C::kColTiles; ++n) live[n] = n * 8 + g < a.rows;

  int stage = 0, buffer = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    float sum[C::kRowTiles][C::kColTiles][4] = {};
    for (int at = 0; at < a.row_bytes; at += kChunkBytes) {
      // All but the latest stages - 2 groups are here: this stage is. Its last reader was this warp, too.
      asm volatile("cp.async.wait_group %0;" ::"n"(C::kStages - 2) : "memory");
      __syncwarp();
      const int ahead = stage == 0 ? C::kStages - 1 : stage - 1;
      feed.load(stage_address(ahead));
      if constexpr (C::kStaged) feed.load_activations(stage_address(ahead));
      commit_copies();
      feed.advance();
      const char* here = ring + stage * C::kStageBytes;
      const int first_byte = at + warp * kLineBytes;
      const char* x[C::kColTiles];
#pragma unroll
      for (int n = 0; n < C::kColTiles; ++n)
        x[n] = C::kStaged ? here + C::kTileRows * kLineBytes + (n * 8 + g) * C::kXLineBytes
                          : resident + (n * 8 + g) * x_stride + first_byte * C::kVectors;
      multiply_stage<C>(sum, here, x, C::kStaged ? (g & 1) << 6 : 0, live, a.row_bytes - first_byte, g, t);
      if (++stage == C::kStages) stage = 0;
    }
    finish_tile<C>(a, tile, sum, sums + buffer * C::kSumFloats, warp, g, t);
    buffer ^= 1;
  }
}

template <class C>
void run(Args& a, const Linear& linear, int multiprocessors, platform::Stream& stream) {
  static const bool allowed = [] { return allow_shared(gemv_kernel<C>, kMostShared), true; }();
  static_cast<void>(allowed);
  a.tiles = 0;
  for (int t = 0; t < a.targets; ++t) {
    a.target[t].first_tile = a.tiles;
    a.tiles += static_cast<std::int32_t>((linear.targets[t].weight.rows + C::kTileRows - 1) / C::kTileRows);
  }
  const int resident = C::kStaged ? 0 : a.rows * resident_stride(a.row_bytes * C::kVectors);
  const auto grid = static_cast<unsigned>(std::min(a.tiles, multiprocessors));
  launch(stream, gemv_kernel<C>, dim3(grid), dim3(kThreads),
         static_cast<std::size_t>(C::kFixedBytes + resident), 1, a);
}

template <Kind kKind>
using Few = Config<kKind, 1, 1, 6, false>;
template <Kind kKind>
using FewLong = Config<kKind, 2, 1, kKind == Kind::fp8 ? 4 : 5, true>;
template <Kind kKind>
using More = Config<kKind, 1, 2, 4, false>;

bool fits(int fixed_bytes, std::int64_t rows, std::int64_t cols) {
  return fixed_bytes + rows * resident_stride(static_cast<int>(cols * 2)) <=
         static_cast<std::int64_t>(kMostShared);
}

template <Kind kKind>
void run_kind(Args& a, const Linear& linear, int multiprocessors, platform::Stream& stream) {
  static_assert(FewLong<kKind>::kFixedBytes <= kMostShared);
  if (a.rows > 8) return run<More<kKind>>(a, linear, multiprocessors, stream);
  if (fits(Few<kKind>::kFixedBytes, a.rows, linear.x.cols()))
    return run<Few<kKind>>(a, linear, multiprocessors, stream);
  run<FewLong<kKind>>(a, linear, multiprocessors, stream);
}

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

DType operand_type(WeightFormat format) { return format == WeightFormat::f16 ? DType::f16 : DType::bf16; }

}  // namespace

bool gemv_takes(const Linear& args) {
  const WeightFormat format = args.targets[0].weight.format;
  const bool fp8 = format == WeightFormat::fp8_e4m3;
  if (!fp8 && format != WeightFormat::bf16 && format != WeightFormat::f16) return false;
  if (args.x.rows() > kGemvRows || args.x.dtype != operand_type(format) || !aligned16(args.x.data) ||
      args.x.stride[0] % 8 != 0 || args.x.cols() % (fp8 ? 64 : 32) != 0 || args.x.cols() > (1 << 20))
    return false;
  if (args.x.rows() > 8 && !fits(More<Kind::bf16>::kFixedBytes, args.x.rows(), args.x.cols())) return false;
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
