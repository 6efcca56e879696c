// Products with few activation rows that fit into shared memory. A persistent grid, one block per
// multiprocessor, or two where they fit (while one begins or ends, the other's stream goes on): one warp
// keeps a ring of stages of weights filled by bulk copies (of pieces shorter than 2 KiB the copies, not the
// memory, are the limit), eight warps multiply them on the tensor cores and add up their shares of the
// columns at the end of a tile.
//
// The ring is filled before the kernel waits for the one before it: weights never change, so their stream
// from memory goes on through the small kernels between two products. A block's first two tiles are fixed,
// the others are taken from a counter: multiprocessors do not all get the same share of the memory's rate.
//
// An output is a sum over its columns in one order, whatever the rows, the grid and who computes it.
#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/gemv_args.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/row_scale.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kConsumers = 8;                    // warps that multiply
constexpr int kThreads = (kConsumers + 1) * 32;  // and one that loads
constexpr int kPieceBytes = 2048;                // of a weight row per stage
constexpr int kWarpBytes = kPieceBytes / kConsumers;
constexpr int kRowBytes = kPieceBytes + 64;  // in shared memory: neighbours' banks differ
// Of longer rows a tile takes a multiprocessor so long that some end well before others: gemv.cu, whose warps
// share smaller pieces, is faster there (docs/PERFORMANCE.md; of e4m3 it is not yet at 14,336 columns).
constexpr std::int64_t kMostBytes = 16384;

// So many stages, up to so many activation rows, and so many blocks a multiprocessor. A tile is 8 outputs,
// which are the columns of the tensor cores' product and activations its 16 rows. Of e4m3 it is 16 outputs
// and they are the rows: what is converted in registers can be that operand without moving, and once for all
// activations.
template <GemvKind kKind_, int kStages_, int kTokens_, int kBlocks_ = 1>
struct Config {
  static constexpr GemvKind kKind = kKind_;
  static constexpr bool kFp8 = kKind == GemvKind::fp8;
  static constexpr int kStages = kStages_, kTokens = kTokens_, kBlocks = kBlocks_;
  static constexpr int kVectors = kFp8 ? 2 : 1;  // activation bytes per weight byte
  static constexpr int kTileRows = kFp8 ? 16 : 8;
  static constexpr int kProducts = kFp8 ? kTokens / 8 : 1;  // of the tensor cores, for a tile
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kSumStride = kTileRows + (kFp8 ? 4 : 0);  // lanes of a warp store to different banks
  static constexpr int kSumFloats = kConsumers * kTokens * kSumStride;
  static constexpr int kScalesAt = 192;  // of the activation rows, behind barriers and tiles
  static constexpr int kFixedBytes = kRingBytes + 2 * kSumFloats * 4 + 256;
  static_assert(kTokens % 8 == 0 && kStages * 20 <= kScalesAt && kScalesAt + kTokens * 4 <= 256);
};

// Bytes between activation rows in shared memory: the lanes that read them at once meet every bank once.
template <GemvKind kKind>
__host__ __device__ constexpr int x_stride_of(int x_bytes) {
  return (x_bytes + 127) / 128 * 128 + (kKind == GemvKind::fp8 ? 16 : 64);
}

struct Ring {
  std::uint32_t stages, full, empty;
  std::int32_t* tile;  // [stages] whose weights a stage holds; -1: no more
};

// The warp that loads: lane r loads row r of every stage; rows past the end load the last one again, so that
// every stage is whole. counters: tiles taken beyond the fixed ones, and blocks that are done; zeros between
// launches.
template <class C>
__device__ void load_weights(const GemvArgs& a, const Ring& ring, std::int32_t* counters) {
  const int lane = static_cast<int>(threadIdx.x % 32), grid = static_cast<int>(gridDim.x);
  const std::uint64_t policy = evict_first_policy();
  const bool counted = a.tiles > 2 * grid;
  int stage = 0;
  std::uint32_t parity = 1;  // the first round finds every stage empty
  const auto advance = [&] {
    if (++stage == C::kStages) stage = 0, parity ^= 1;
  };
  int tile = static_cast<int>(blockIdx.x);
  for (int n = 0; tile < a.tiles; ++n) {
    int next = n == 0 ? tile + grid : a.tiles;
    if (n > 0 && counted) {
      // The counter belongs to the launch before until that one is complete.
      if (n == 1) wait_for_earlier();
      if (lane == 0) next = 2 * grid + atomicAdd(counters, 1);
    }
    const GemvTarget& target = target_of(a, tile);
    const int row = min((tile - target.first_tile) * C::kTileRows + lane, target.rows - 1);
    const char* source = target.weight + row * target.row_bytes;
    for (int at = 0; at < a.row_bytes; at += kPieceBytes) {
      const auto bytes = static_cast<std::uint32_t>(min(kPieceBytes, a.row_bytes - at));
      barrier_wait(ring.empty + stage * 8, parity);
      if (lane == 0) {
        ring.tile[stage] = tile;
        barrier_expect(ring.full + stage * 8, bytes * C::kTileRows);
      }
      __syncwarp();
      if (lane < C::kTileRows)
        bulk_load(ring.stages + stage * C::kStageBytes + lane * kRowBytes, source + at, bytes,
                  ring.full + stage * 8, policy);
      advance();
    }
    tile = __shfl_sync(0xffffffffu, next, 0);
  }
  barrier_wait(ring.empty + stage * 8, parity);
  if (lane != 0) return;
  ring.tile[stage] = -1;
  barrier_arrive(ring.full + stage * 8);
  // The last block to find no more tiles puts the zeros back: nobody takes one after that.
  if (counted && atomicAdd(counters + 1, 1) == grid - 1) {
    counters[0] = 0;
    counters[1] = 0;
  }
}

template <class C>
using Sums = float[C::kProducts][2][4];  // two of each, so that one need not wait for the other

// 64 bytes of every weight row at `line`. `x`, `x_high`: this lane's activation rows (lane / 4, and 8 more)
// at the warp's first column; null: no such row.
template <class C>
__device__ __forceinline__ void multiply_line(Sums<C>& sum, const char* weights, const char* x,
                                              const char* x_high, int line, int g, int t) {
  const int byte = line + t * 16;
  const auto load_x = [&](const char* row, int vector) {
    return row ? *reinterpret_cast<const uint4*>(row + byte * C::kVectors + vector * 16)
               : make_uint4(0, 0, 0, 0);
  };
  const auto load_w = [&](int row) {
    return *reinterpret_cast<const uint4*>(weights + row * kRowBytes + byte);
  };
  if constexpr (C::kFp8) {
    const uint4 low = load_w(g), high = load_w(g + 8);
    const std::uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 at[2] = {load_x(x, v), C::kTokens > 8 ? load_x(x_high, v) : make_uint4(0, 0, 0, 0)};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t l0, l1, h0, h1;
        halve_fp8(l[v * 2 + i], l0, l1);
        halve_fp8(h[v * 2 + i], h0, h1);
#pragma unroll
        for (int n = 0; n < C::kProducts; ++n)
          mma<true>(sum[n][i], l0, h0, l1, h1, i ? at[n].z : at[n].x, i ? at[n].w : at[n].y);
      }
    }
  } else {
    constexpr bool kHalf = C::kKind == GemvKind::f16;
    const uint4 low = load_x(x, 0), high = C::kTokens > 8 ? load_x(x_high, 0) : make_uint4(0, 0, 0, 0);
    const uint4 w = load_w(g);
    mma<kHalf>(sum[0][0], low.x, high.x, low.y, high.y, w.x, w.y);
    mma<kHalf>(sum[0][1], low.z, high.z, low.w, high.w, w.z, w.w);
  }
}

// One stage's share of a warp; `left`: bytes of a weight row from its first column on. A whole share has no
// branches: its loads are under way together.
template <class C>
__device__ __forceinline__ void multiply_stage(Sums<C>& sum, const char* weights, const char* x,
                                               const char* x_high, int left, int g, int t) {
  if (left >= kWarpBytes) {
#pragma unroll
    for (int line = 0; line < kWarpBytes; line += 64) multiply_line<C>(sum, weights, x, x_high, line, g, t);
  } else {
#pragma unroll 1
    for (int line = 0; line < left; line += 64) multiply_line<C>(sum, weights, x, x_high, line, g, t);
  }
}

__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers * 32) : "memory");
}

// Adds the warps' shares up in their order and writes the tile.
template <class C>
__device__ __forceinline__ void finish_tile(const GemvArgs& a, int tile, const Sums<C>& sum, float* sums,
                                            const float* x_scale, int warp, int g, int t) {
  const GemvTarget& target = target_of(a, tile);
  float* share = sums + warp * C::kTokens * C::kSumStride;
#pragma unroll
  for (int half = 0; half < C::kTokens / 8; ++half) {
    const auto two = [&](int first) {
      const int n = C::kFp8 ? half : 0, i = C::kFp8 ? first : half * 2 + first;
      return sum[n][0][i] + sum[n][1][i];
    };
    if constexpr (C::kFp8) {
      float* at = share + (half * 8 + 2 * t) * C::kSumStride + g;
      at[0] = two(0);
      at[C::kSumStride] = two(1);
      at[8] = two(2);
      at[C::kSumStride + 8] = two(3);
    } else {
      float* at = share + (half * 8 + g) * C::kSumStride + 2 * t;
      at[0] = two(0);
      at[1] = two(1);
    }
  }
  consumers_sync();
  const int i = static_cast<int>(threadIdx.x);
  static_assert(C::kTileRows * C::kTokens <= kConsumers * 32);
  const int row = i % C::kTileRows, token = i / C::kTileRows;
  const int out = (tile - target.first_tile) * C::kTileRows + row;
  if (token >= a.rows || out >= target.rows) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kConsumers; ++w) total += sums[(w * C::kTokens + token) * C::kSumStride + row];
  if (C::kFp8) total *= x_scale[token];
  store_output(target, token, out, total);
}

__device__ __forceinline__ void load_activations(const GemvArgs& a, char* x, int x_bytes, int stride) {
  const int per_row = x_bytes / 16, pieces = per_row * a.rows;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kConsumers * 32) {
    const int row = i / per_row, piece = i - row * per_row;
    *reinterpret_cast<uint4*>(x + row * stride + piece * 16) =
        *reinterpret_cast<const uint4*>(a.x + row * a.x_stride + piece * 16);
  }
}

// The same of up to kConvertRows rows of bf16 that become f16 (row_scale.cuh).
__device__ __forceinline__ void load_as_f16(const GemvArgs& a, char* x, int x_bytes, int stride,
                                            float* x_scale) {
  const int per_row = x_bytes / 16, thread = static_cast<int>(threadIdx.x);
  std::uint32_t two[kConvertRows] = {};
#pragma unroll
  for (int row = 0; row < kConvertRows; ++row) {
    if (row >= a.rows) break;
#pragma unroll 4
    for (int i = thread; i < per_row; i += kConsumers * 32) {
      const uint4 eight = *reinterpret_cast<const uint4*>(a.x + row * a.x_stride + i * 16);
      *reinterpret_cast<uint4*>(x + row * stride + i * 16) = eight;
      two[row] = larger_halves(two[row], eight);
    }
  }
  auto* largest = reinterpret_cast<std::uint32_t*>(x_scale);  // zeros so far
#pragma unroll
  for (int row = 0; row < kConvertRows; ++row) {
    const std::uint32_t most = __reduce_max_sync(0xffffffffu, larger_half(two[row]));
    if (thread % 32 == 0) atomicMax(largest + row, most);
  }
  consumers_sync();
  float scale[kConvertRows];
#pragma unroll
  for (int row = 0; row < kConvertRows; ++row) {
    scale[row] = f16_scale_of(largest[row]);
    if (row >= a.rows) continue;
    const float inverse = 1.0f / scale[row];
    for (int i = thread; i < per_row; i += kConsumers * 32) {
      char* eight = x + row * stride + i * 16;
      float values[8];
      load8(eight, DType::bf16, true, 0, 8, values);
#pragma unroll
      for (float& value : values) value *= inverse;
      store8(eight, DType::f16, true, 0, 8, values);
    }
  }
  consumers_sync();
#pragma unroll
  for (int row = 0; row < kConvertRows; ++row)
    if (thread == row) x_scale[row] = scale[row];
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks)
    ring_kernel(const __grid_constant__ GemvArgs a, std::int32_t* counters) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared + C::kRingBytes);
  char* barriers = reinterpret_cast<char*>(sums + 2 * C::kSumFloats);
  auto* x_scale = reinterpret_cast<float*>(barriers + C::kScalesAt);
  char* x = barriers + 256;
  const Ring ring{shared_address(shared), shared_address(barriers), shared_address(barriers) + C::kStages * 8,
                  reinterpret_cast<std::int32_t*>(barriers + C::kStages * 16)};
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x < C::kTokens) x_scale[threadIdx.x] = 0.0f;
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      barrier_init(ring.full + s * 8, 1);
      barrier_init(ring.empty + s * 8, kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  let_next_start();
  if (warp == kConsumers) return load_weights<C>(a, ring, counters);
  wait_for_earlier();
  const int x_bytes = a.row_bytes * C::kVectors, stride = x_stride_of<C::kKind>(x_bytes);
  if (C::kFp8 && a.x_scale == nullptr) {
    load_as_f16(a, x, x_bytes, stride, x_scale);
  } else {
    load_activations(a, x, x_bytes, stride);
    if (C::kFp8 && static_cast<int>(threadIdx.x) < a.rows) x_scale[threadIdx.x] = a.x_scale[threadIdx.x];
  }
  consumers_sync();

  const int g = lane / 4, t = lane % 4;
  const char* low = g < a.rows ? x + g * stride + warp * kWarpBytes * C::kVectors : nullptr;
  const char* high = g + 8 < a.rows ? x + (g + 8) * stride + warp * kWarpBytes * C::kVectors : nullptr;
  int stage = 0, buffer = 0;
  std::uint32_t parity = 0;
  while (true) {
    barrier_wait(ring.full + stage * 8, parity);
    const int tile = ring.tile[stage];
    if (tile < 0) return;
    Sums<C> sum = {};
    for (int at = 0; at < a.row_bytes; at += kPieceBytes) {
      if (at > 0) barrier_wait(ring.full + stage * 8, parity);
      multiply_stage<C>(sum, shared + stage * C::kStageBytes + warp * kWarpBytes,
                        low ? low + at * C::kVectors : nullptr, high ? high + at * C::kVectors : nullptr,
                        a.row_bytes - at - warp * kWarpBytes, g, t);
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty + stage * 8);
      if (++stage == C::kStages) stage = 0, parity ^= 1;
    }
    finish_tile<C>(a, tile, sum, sums + buffer * C::kSumFloats, x_scale, warp, g, t);
    buffer ^= 1;
  }
#endif
}

template <GemvKind kKind>
using Few = Config<kKind, kKind == GemvKind::fp8 ? 4 : 8, 8>;
template <GemvKind kKind>
using Twice = Config<kKind, 5, 8, 2>;
template <GemvKind kKind>
using More = Config<kKind, kKind == GemvKind::fp8 ? 2 : 5, 16>;

// Shared memory of a multiprocessor of sm_90, and what the system keeps of it for every block.
constexpr int kOfMultiprocessor = 228 << 10, kReserved = 1 << 10;

template <class C>
int shared_bytes(const GemvArgs& a) {
  return C::kFixedBytes + a.rows * x_stride_of<C::kKind>(a.row_bytes * C::kVectors);
}

template <class C>
void run(GemvArgs& a, std::int32_t* counters, int multiprocessors, platform::Stream& stream) {
  static const bool allowed = [] { return allow_shared(ring_kernel<C>, kMostShared), true; }();
  static_cast<void>(allowed);
  cut_tiles(a, C::kTileRows);
  launch(stream, ring_kernel<C>, dim3(static_cast<unsigned>(std::min(a.tiles, C::kBlocks * multiprocessors))),
         dim3(kThreads), static_cast<std::size_t>(shared_bytes<C>(a)), 1, a, counters);
}

template <GemvKind kKind>
void run_kind(GemvArgs& a, std::int32_t* counters, int multiprocessors, platform::Stream& stream) {
  // Of e4m3 one block with twice the stages is faster (docs/PERFORMANCE.md).
  if constexpr (kKind != GemvKind::fp8) {
    if (a.rows <= 8 && 2 * (shared_bytes<Twice<kKind>>(a) + kReserved) <= kOfMultiprocessor)
      return run<Twice<kKind>>(a, counters, multiprocessors, stream);
  }
  if (a.rows <= 8) return run<Few<kKind>>(a, counters, multiprocessors, stream);
  run<More<kKind>>(a, counters, multiprocessors, stream);
}

template <GemvKind kKind>
bool fits(std::int64_t rows, std::int64_t cols) {
  const int fixed = rows <= 8 ? Few<kKind>::kFixedBytes : More<kKind>::kFixedBytes;
  return fixed + rows * x_stride_of<kKind>(static_cast<int>(cols * 2)) <=
         static_cast<std::int64_t>(kMostShared);
}

}  // namespace

bool ring_takes(GemvKind kind, std::int64_t rows, std::int64_t cols) {
  if (kind == GemvKind::fp8) return rows <= 16 && cols <= kMostBytes && fits<GemvKind::fp8>(rows, cols);
  return rows <= 16 && cols * 2 <= kMostBytes && fits<GemvKind::bf16>(rows, cols);
}

void run_ring(GemvKind kind, GemvArgs& a, std::int32_t* counters, int multiprocessors,
              platform::Stream& stream) {
  QUIRE_CHECK(kind != GemvKind::fp8 || a.x_scale != nullptr || a.rows <= kConvertRows, "{} rows", a.rows);
  if (kind == GemvKind::bf16) return run_kind<GemvKind::bf16>(a, counters, multiprocessors, stream);
  if (kind == GemvKind::f16) return run_kind<GemvKind::f16>(a, counters, multiprocessors, stream);
  run_kind<GemvKind::fp8>(a, counters, multiprocessors, stream);
}

}  // namespace quire::ops::cuda
