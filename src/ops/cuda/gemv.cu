// Products with few activation rows: the choice of a kernel, and the one for long rows and for activations
// that do not fit into shared memory (for others: gemv_ring.cu). A persistent grid, one block per
// multiprocessor; a block has a tile of 32 output rows at a time, and its eight warps share the columns among
// them. Every warp keeps a ring of stages of its share of the weights, and of the activations of the same
// columns, filled by asynchronous copies, multiplies them on the tensor cores (weights as the 16-row operand,
// activations as the 8-column one), and at the end of a tile the warps' shares are added up.
//
// The weights of the ring are on their way before the kernel waits for the one before it: they never change.
// e4m3 weights are multiplied as f16, into which one instruction turns two of them, by activations in f16
// with one scale a row (row_scale.cuh).
#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/gemv.h"
#include "ops/cuda/gemv_args.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kLineBytes = 128;                   // of a weight row, per warp and stage
constexpr int kChunkBytes = kLineBytes * kWarps;  // and per block

// Row tiles of 16 outputs, so many stages, up to so many activation rows.
template <GemvKind kKind_, int kRowTiles_, int kStages_, int kTokens_>
struct Config {
  static constexpr GemvKind kKind = kKind_;
  static constexpr int kRowTiles = kRowTiles_, kStages = kStages_, kTokens = kTokens_;
  static constexpr int kVectors = kKind == GemvKind::fp8 ? 2 : 1;  // activation bytes per weight byte
  static constexpr int kTileRows = 16 * kRowTiles, kTokenTiles = kTokens / 8;
  static constexpr int kXLineBytes = kLineBytes * kVectors;
  // What the place in a line is XORed with in odd rows: eight lanes that read two rows meet every bank once.
  static constexpr int kXFlip = kVectors == 2 ? 16 : 64;
  static constexpr int kStageBytes = kTileRows * kLineBytes + kTokens * kXLineBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSumStride = kTileRows + 4;  // lanes of a warp store to different banks
  static constexpr int kSumFloats = kWarps * kTokens * kSumStride;
  static constexpr int kSumBuffers = kTokens > 8 ? 1 : 2;
  static constexpr int kBytes = kRingBytes + kSumBuffers * kSumFloats * 4;
  static_assert(kBytes <= kMostShared);
};

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
  const GemvArgs& a;
  int tile, at = 0, first = 0, lane_byte, lane_row;
  const GemvTarget* target = nullptr;

  __device__ Feed(const GemvArgs& args, int warp, int lane)
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
                                                  (byte ^ (row % 2 * C::kXFlip))),
               a.x + row * a.x_stride + column);
    }
  }
};

// One stage's products of a lane whose activation rows are `g` and, of 16, `g` + 8.
template <class C>
__device__ __forceinline__ void multiply_stage(float (&sum)[C::kRowTiles][C::kTokenTiles][4],
                                               const char* stage, int rows, int left, int g, int t) {
  const char* x = stage + C::kTileRows * kLineBytes + g * C::kXLineBytes;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (j * 64 >= left) return;
    uint4 b[C::kTokenTiles][C::kVectors];
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int v = 0; v < C::kVectors; ++v) {
        const int byte = (j * 64 + t * 16) * C::kVectors + v * 16;
        b[n][v] =
            g + n * 8 < rows
                ? *reinterpret_cast<const uint4*>(x + n * 8 * C::kXLineBytes + (byte ^ (g % 2 * C::kXFlip)))
                : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int m = 0; m < C::kRowTiles; ++m) {
      const uint4 low = *reinterpret_cast<const uint4*>(stage + line_offset(m * 16 + g, j * 64 + t * 16));
      const uint4 high =
          *reinterpret_cast<const uint4*>(stage + line_offset(m * 16 + g + 8, j * 64 + t * 16));
      if constexpr (C::kKind == GemvKind::fp8) {
        const std::uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t l0, l1, h0, h1;
          halve_fp8(l[w], l0, l1);
          halve_fp8(h[w], h0, h1);
#pragma unroll
          for (int n = 0; n < C::kTokenTiles; ++n) {
            const uint4& v = b[n][w / 2];
            mma<true>(sum[m][n], l0, h0, l1, h1, w % 2 ? v.z : v.x, w % 2 ? v.w : v.y);
          }
        }
      } else {
        constexpr bool kHalf = C::kKind == GemvKind::f16;
#pragma unroll
        for (int n = 0; n < C::kTokenTiles; ++n) {
          mma<kHalf>(sum[m][n], low.x, high.x, low.y, high.y, b[n][0].x, b[n][0].y);
          mma<kHalf>(sum[m][n], low.z, high.z, low.w, high.w, b[n][0].z, b[n][0].w);
        }
      }
    }
  }
}

// Adds the warps' shares up in their order and writes the tile.
template <class C>
__device__ __forceinline__ void finish_tile(const GemvArgs& a, int tile,
                                            const float (&sum)[C::kRowTiles][C::kTokenTiles][4], float* sums,
                                            int warp, int g, int t) {
  const GemvTarget& target = target_of(a, tile);
  if (C::kSumBuffers == 1) __syncthreads();  // the tile before is written
#pragma unroll
  for (int m = 0; m < C::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
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
    const int out = (tile - target.first_tile) * C::kTileRows + row;
    if (out >= target.rows) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[(w * C::kTokens + token) * C::kSumStride + row];
    if (C::kKind == GemvKind::fp8) total *= a.x_scale[token];
    store_output(target, token, out, total);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) staged_kernel(const __grid_constant__ GemvArgs a) {
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared + C::kRingBytes);
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
  Feed<C> again(a, warp, lane);
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) {
    again.load_activations(stage_address(s));
    commit_copies();
    again.advance();
  }
  int stage = 0, buffer = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x)) {
    float sum[C::kRowTiles][C::kTokenTiles][4] = {};
    for (int at = 0; at < a.row_bytes; at += kChunkBytes) {
      // All but the latest stages - 2 groups are here: this stage is. Its last reader was this warp, too.
      asm volatile("cp.async.wait_group %0;" ::"n"(C::kStages - 2) : "memory");
      __syncwarp();
      const int ahead = stage == 0 ? C::kStages - 1 : stage - 1;
      feed.load(stage_address(ahead));
      feed.load_activations(stage_address(ahead));
      commit_copies();
      feed.advance();
      multiply_stage<C>(sum, ring + stage * C::kStageBytes, a.rows, a.row_bytes - at - warp * kLineBytes, g,
                        t);
      if (++stage == C::kStages) stage = 0;
    }
    finish_tile<C>(a, tile, sum, sums + buffer * C::kSumFloats, warp, g, t);
    if (C::kSumBuffers == 2) buffer ^= 1;
  }
}

template <class C>
void run_staged(GemvArgs& a, int multiprocessors, platform::Stream& stream) {
  static const bool allowed = [] { return allow_shared(staged_kernel<C>, kMostShared), true; }();
  static_cast<void>(allowed);
  cut_tiles(a, C::kTileRows);
  launch(stream, staged_kernel<C>, dim3(static_cast<unsigned>(std::min(a.tiles, multiprocessors))),
         dim3(kThreads), C::kBytes, 1, a);
}

GemvKind kind_of(WeightFormat format) {
  return format == WeightFormat::bf16  ? GemvKind::bf16
         : format == WeightFormat::f16 ? GemvKind::f16
                                       : GemvKind::fp8;
}

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace

bool gemv_takes(const Linear& args) {
  const WeightFormat format = args.targets[0].weight.format;
  const bool fp8 = format == WeightFormat::fp8_e4m3;
  if (!fp8 && format != WeightFormat::bf16 && format != WeightFormat::f16) return false;
  if (args.x.rows() > kGemvRows || args.x.dtype != operand_type(format) || !aligned16(args.x.data) ||
      args.x.stride[0] % 8 != 0 || args.x.cols() % (fp8 ? 64 : 32) != 0 || args.x.cols() > (1 << 20))
    return false;
  if (args.x.rows() > 8 && !fp8 && !ring_takes(kind_of(format), args.x.rows(), args.x.cols())) return false;
  for (int t = 0; t < args.target_count; ++t) {
    const WeightView& weight = args.targets[t].weight;
    if (weight.format != format || !aligned16(weight.data) || weight.row_bytes % 16 != 0) return false;
  }
  return true;
}

void gemv(const Linear& linear, const GemvScratch& scratch, int multiprocessors, platform::Stream& stream) {
  QUIRE_CHECK(gemv_takes(linear), "{} rows of {} columns, format {}", linear.x.rows(), linear.x.cols(),
              weight_format_info(linear.targets[0].weight.format).name);
  GemvArgs a{};
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
  const GemvKind kind = kind_of(format);
  const bool ring = ring_takes(kind, a.rows, linear.x.cols());
  if (kind == GemvKind::fp8 && !(ring && a.rows <= kConvertRows)) {
    round_rows(linear.x, scratch.half, stream);
    a.x = static_cast<const char*>(scratch.half.values);
    a.x_stride = linear.x.cols() * 2;
    a.x_scale = scratch.half.scales;
  }
  if (ring) return run_ring(kind, a, scratch.counters, multiprocessors, stream);
  if (kind == GemvKind::bf16) return run_staged<Config<GemvKind::bf16, 2, 5, 8>>(a, multiprocessors, stream);
  if (kind == GemvKind::f16) return run_staged<Config<GemvKind::f16, 2, 5, 8>>(a, multiprocessors, stream);
  if (a.rows <= 8) return run_staged<Config<GemvKind::fp8, 2, 4, 8>>(a, multiprocessors, stream);
  run_staged<Config<GemvKind::fp8, 2, 3, 16>>(a, multiprocessors, stream);
}

}  // namespace quire::ops::cuda
