// Products with few activation rows that fit into shared memory. A persistent grid, one block per
// multiprocessor, or two where they fit (while one begins or ends, the other's stream goes on): one warp
// keeps a ring of stages of weights filled by bulk copies (of pieces shorter than 2 KiB the copies, not the
// memory, are the limit), eight warps multiply them on the tensor cores (activations as the 16-row operand,
// weights as the 8-column one) and add up their shares of the columns at the end of a tile.
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

namespace quire::ops::cuda {
namespace {

constexpr int kConsumers = 8;                    // warps that multiply
constexpr int kThreads = (kConsumers + 1) * 32;  // and one that loads
constexpr int kPieceBytes = 2048;                // of a weight row per stage
constexpr int kWarpBytes = kPieceBytes / kConsumers;
constexpr int kRowBytes = kPieceBytes + 64;  // in shared memory: neighbours' banks differ
// Of longer rows a tile takes a multiprocessor so long that some end well before others: gemv.cu, whose warps
// share smaller pieces, is faster there (docs/PERFORMANCE.md).
constexpr std::int64_t kMostColumns = 8192;

// Row tiles of 8 outputs, so many stages, up to so many activation rows, and so many blocks a multiprocessor.
template <GemvKind kKind_, int kRowTiles_, int kStages_, int kTokens_, int kBlocks_ = 1>
struct Config {
  static constexpr GemvKind kKind = kKind_;
  static constexpr int kRowTiles = kRowTiles_, kStages = kStages_, kTokens = kTokens_, kBlocks = kBlocks_;
  static constexpr int kVectors = kKind == GemvKind::fp8 ? 2 : 1;  // activation bytes per weight byte
  static constexpr int kTileRows = 8 * kRowTiles;
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kSumFloats = kConsumers * kTokens * kTileRows;
  static constexpr int kFixedBytes = kRingBytes + 2 * kSumFloats * 4 + 256;  // and barriers and tiles
  static_assert(kStages * 20 <= 256);
};

// Bytes between activation rows in shared memory: neighbours' banks differ.
__host__ __device__ constexpr int x_stride_of(int x_bytes) { return (x_bytes + 127) / 128 * 128 + 64; }

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

// One stage's share of a warp. `x`, `x_high`: this lane's activation rows (lane / 4, and 8 more) at the
// warp's first column; null: no such row.
template <class C>
__device__ __forceinline__ void multiply_stage(float (&sum)[C::kRowTiles][2][4], const char* weights,
                                               const char* x, const char* x_high, int left, int g, int t) {
  const auto load_x = [](const char* at, int byte) {
    return at ? *reinterpret_cast<const uint4*>(at + byte) : make_uint4(0, 0, 0, 0);
  };
#pragma unroll
  for (int j = 0; j < kWarpBytes / 64; ++j) {
    if (j * 64 >= left) return;
    const int byte = j * 64 + t * 16;
    uint4 low[C::kVectors], high[C::kVectors];
#pragma unroll
    for (int v = 0; v < C::kVectors; ++v) {
      low[v] = load_x(x, byte * C::kVectors + v * 16);
      high[v] = C::kTokens > 8 ? load_x(x_high, byte * C::kVectors + v * 16) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      const uint4 w = *reinterpret_cast<const uint4*>(weights + (r * 8 + g) * kRowBytes + byte);
      if constexpr (C::kKind == GemvKind::fp8) {
        const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          std::uint32_t b0, b1;
          widen_fp8(words[i], b0, b1);
          const uint4 &l = low[i / 2], &h = high[i / 2];
          mma<false>(sum[r][i % 2], i % 2 ? l.z : l.x, i % 2 ? h.z : h.x, i % 2 ? l.w : l.y,
                     i % 2 ? h.w : h.y, b0, b1);
        }
      } else {
        constexpr bool kHalf = C::kKind == GemvKind::f16;
        mma<kHalf>(sum[r][0], low[0].x, high[0].x, low[0].y, high[0].y, w.x, w.y);
        mma<kHalf>(sum[r][1], low[0].z, high[0].z, low[0].w, high[0].w, w.z, w.w);
      }
    }
  }
}

__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers * 32) : "memory");
}

// Adds the warps' shares up in their order and writes the tile.
template <class C>
__device__ __forceinline__ void finish_tile(const GemvArgs& a, int tile,
                                            const float (&sum)[C::kRowTiles][2][4], float* sums, int warp,
                                            int g, int t) {
  const GemvTarget& target = target_of(a, tile);
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < C::kTokens / 8; ++half) {
      float* at = sums + (warp * C::kTokens + half * 8 + g) * C::kTileRows + r * 8 + 2 * t;
      at[0] = sum[r][0][half * 2] + sum[r][1][half * 2];
      at[1] = sum[r][0][half * 2 + 1] + sum[r][1][half * 2 + 1];
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
  for (int w = 0; w < kConsumers; ++w) total += sums[(w * C::kTokens + token) * C::kTileRows + row];
  store_output(target, token, out, total);
}

// All activation rows into shared memory, by the consumers; many loads in flight.
__device__ __forceinline__ void load_activations(const GemvArgs& a, char* x, int x_bytes) {
  const int per_row = x_bytes / 16, pieces = per_row * a.rows, stride = x_stride_of(x_bytes);
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kConsumers * 32) {
    const int row = i / per_row, piece = i - row * per_row;
    *reinterpret_cast<uint4*>(x + row * stride + piece * 16) =
        *reinterpret_cast<const uint4*>(a.x + row * a.x_stride + piece * 16);
  }
  consumers_sync();
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks)
    ring_kernel(const __grid_constant__ GemvArgs a, std::int32_t* counters) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared + C::kRingBytes);
  char* barriers = reinterpret_cast<char*>(sums + 2 * C::kSumFloats);
  char* x = barriers + 256;
  const Ring ring{shared_address(shared), shared_address(barriers), shared_address(barriers) + C::kStages * 8,
                  reinterpret_cast<std::int32_t*>(barriers + C::kStages * 16)};
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
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
  const int x_bytes = a.row_bytes * C::kVectors, stride = x_stride_of(x_bytes);
  load_activations(a, x, x_bytes);

  const int g = lane / 4, t = lane % 4;
  const char* low = g < a.rows ? x + g * stride + warp * kWarpBytes * C::kVectors : nullptr;
  const char* high = g + 8 < a.rows ? x + (g + 8) * stride + warp * kWarpBytes * C::kVectors : nullptr;
  int stage = 0, buffer = 0;
  std::uint32_t parity = 0;
  while (true) {
    barrier_wait(ring.full + stage * 8, parity);
    const int tile = ring.tile[stage];
    if (tile < 0) return;
    float sum[C::kRowTiles][2][4] = {};
    for (int at = 0; at < a.row_bytes; at += kPieceBytes) {
      if (at > 0) barrier_wait(ring.full + stage * 8, parity);
      multiply_stage<C>(sum, shared + stage * C::kStageBytes + warp * kWarpBytes,
                        low ? low + at * C::kVectors : nullptr, high ? high + at * C::kVectors : nullptr,
                        a.row_bytes - at - warp * kWarpBytes, g, t);
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty + stage * 8);
      if (++stage == C::kStages) stage = 0, parity ^= 1;
    }
    finish_tile<C>(a, tile, sum, sums + buffer * C::kSumFloats, warp, g, t);
    buffer ^= 1;
  }
#endif
}

template <GemvKind kKind>
using Few = Config<kKind, 1, 8, 8>;
template <GemvKind kKind>
using Twice = Config<kKind, 1, 5, 8, 2>;
template <GemvKind kKind>
using More = Config<kKind, 1, 5, 16>;

// Shared memory of a multiprocessor of sm_90, and what the system keeps of it for every block.
constexpr int kOfMultiprocessor = 228 << 10, kReserved = 1 << 10;

template <class C>
int shared_bytes(const GemvArgs& a) {
  return C::kFixedBytes + a.rows * x_stride_of(a.row_bytes * C::kVectors);
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
  if (a.rows <= 8 && 2 * (shared_bytes<Twice<kKind>>(a) + kReserved) <= kOfMultiprocessor)
    return run<Twice<kKind>>(a, counters, multiprocessors, stream);
  if (a.rows <= 8) return run<Few<kKind>>(a, counters, multiprocessors, stream);
  run<More<kKind>>(a, counters, multiprocessors, stream);
}

}  // namespace

bool ring_takes(std::int64_t rows, std::int64_t cols) {
  // The same for every kind: the sizes depend on the pieces' bytes only.
  const int fixed = rows <= 8 ? Few<GemvKind::bf16>::kFixedBytes : More<GemvKind::bf16>::kFixedBytes;
  return rows <= 16 && cols <= kMostColumns &&
         fixed + rows * x_stride_of(static_cast<int>(cols * 2)) <= static_cast<std::int64_t>(kMostShared);
}

void run_ring(GemvKind kind, GemvArgs& a, std::int32_t* counters, int multiprocessors,
              platform::Stream& stream) {
  if (kind == GemvKind::bf16) return run_kind<GemvKind::bf16>(a, counters, multiprocessors, stream);
  if (kind == GemvKind::f16) return run_kind<GemvKind::f16>(a, counters, multiprocessors, stream);
  run_kind<GemvKind::fp8>(a, counters, multiprocessors, stream);
}

}  // namespace quire::ops::cuda
