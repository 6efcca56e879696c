// The experts: rows sorted by expert on the device, one grouped product for gate and up with the activation
// at its end, one for down, and the weighted sum. The host never learns who chose whom: grids are sized for
// the worst case, and blocks without work leave at once.
//
// An output of a product is one chain of 16-column steps whatever the tile, and a row's k parts are added in
// their order: a row does not depend on the others.
#include <algorithm>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kPlanThreads = 1024;
constexpr std::int64_t kRowsAtOnce = 4096;  // what the workspace is made for; more rows come in pieces

// `place` p counts (row, k) pairs in the order of experts; a tile is up to tile_rows places of one expert.
struct Places {
  std::int32_t* begin;       // [experts + 1] first place of every expert
  std::int32_t* pair;        // [places] row * top_k + k
  std::int32_t* place;       // [places] of a pair
  int2* tiles;               // expert, first place
  std::int32_t* tile_count;  // [1]
};

// ---- sorting by expert: one block ----

// The sum of the values of threads below, and of all.
__device__ std::int32_t scan_before(std::int32_t x, std::int32_t* shared, std::int32_t& total) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  std::int32_t sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    std::int32_t all = shared[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t other = __shfl_up_sync(0xffffffffu, all, step);
      if (lane >= step) all += other;
    }
    shared[lane] = all;
  }
  __syncthreads();
  total = shared[31];
  const std::int32_t before = sum - x + (warp > 0 ? shared[warp - 1] : 0);
  __syncthreads();
  return before;
}

// Which of an expert's places a pair gets is left to chance: no result depends on it.
__global__ void __launch_bounds__(kPlanThreads) sort_kernel(const std::int32_t* expert, std::int32_t pairs,
                                                            std::int32_t experts, int tile_rows, Places out) {
  __shared__ std::int32_t count[kMaxExperts], next[kMaxExperts], shared[32];
  begin_kernel();
  const int me = static_cast<int>(threadIdx.x);
  count[me] = 0;
  __syncthreads();
  for (std::int32_t p = me; p < pairs; p += kPlanThreads) {
    if (expert[p] < 0 || expert[p] >= experts) __trap();  // a bug of the router
    atomicAdd(&count[expert[p]], 1);
  }
  __syncthreads();
  std::int32_t total = 0;
  const std::int32_t first = scan_before(count[me], shared, total);
  next[me] = first;
  if (me < experts) out.begin[me] = first;
  if (me == 0) out.begin[experts] = pairs;
  const std::int32_t tiles = (count[me] + tile_rows - 1) / tile_rows;
  const std::int32_t tile = scan_before(tiles, shared, total);
  for (std::int32_t i = 0; i < tiles; ++i) out.tiles[tile + i] = make_int2(me, first + i * tile_rows);
  if (me == 0) *out.tile_count = total;
  __syncthreads();
  for (std::int32_t p = me; p < pairs; p += kPlanThreads) {
    const std::int32_t at = atomicAdd(&next[expert[p]], 1);
    out.pair[at] = p;
    out.place[p] = at;
  }
}

// ---- the grouped products ----

constexpr int kThreads = 128;
constexpr int kStepCols = 64;              // columns per stage
constexpr int kLineBytes = kStepCols * 2;  // of a row in a stage
constexpr int kWeightRows = 128;           // of a block: 64 of gate and 64 of up, or 128 of down

struct ExpertArgs {
  const char* x;          // bf16
  std::int64_t x_stride;  // bytes
  std::int32_t cols;
  std::int32_t outs;      // rows of a weight
  std::int32_t top_k;     // of gathered rows (place -> row of x); 0: x has a row per place
  const char* weight[2];  // gate and up, or down
  std::int64_t row_bytes[2], expert_bytes[2];
  const float* bias[2];  // [experts, outs] or null
  Activation kind;
  float limit;
  char* y;  // gated: bf16 [places, outs]; else float32
  Places places;
};

// Sixteen-byte pieces of a row go to other banks in each of eight neighbouring rows.
__device__ __forceinline__ int line_offset(int row, int piece) {
  return row * kLineBytes + ((piece ^ (row & 7)) << 4);
}

__device__ __forceinline__ void copy16(std::uint32_t target, const char* source, bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <int kRows>
struct Tile {
  static constexpr int kStageBytes = (kRows + kWeightRows) * kLineBytes;
  static constexpr int kStages = kRows == 16 ? 6 : 4;
  static constexpr int kBytes = kStages * kStageBytes;
};

template <int kRows, bool kGated>
struct Loader {
  const char* x[kRows / 16];  // this thread's rows of the tile
  bool valid[kRows / 16];
  const char* weight[8];
  bool inside[8];
  std::uint32_t target;
  int piece;
  int cols;

  __device__ Loader(const ExpertArgs& a, std::uint32_t shared, int expert, int first, int end, int out0) {
    const int row = static_cast<int>(threadIdx.x / 8);
    piece = static_cast<int>(threadIdx.x % 8);
    target = shared + static_cast<std::uint32_t>(line_offset(row, piece));  // 16 rows on: the same banks
    cols = a.cols;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int place = first + i * 16 + row;
      valid[i] = place < end;
      const std::int64_t from = !valid[i] ? 0 : a.top_k > 0 ? a.places.pair[place] / a.top_k : place;
      x[i] = a.x + from * a.x_stride + piece * 16;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int which = kGated && i >= 4 ? 1 : 0;
      const int out = out0 + (kGated ? (i % 4) * 16 : i * 16) + row;
      inside[i] = out < a.outs;
      weight[i] = a.weight[which] + expert * a.expert_bytes[which] +
                  (inside[i] ? out : 0) * a.row_bytes[which] + piece * 16;
    }
  }
  __device__ void load(int stage, int col) {
    const std::uint32_t to = target + static_cast<std::uint32_t>(stage * Tile<kRows>::kStageBytes);
    const bool in = col + piece * 8 < cols;
    const std::int64_t byte = in ? std::int64_t{col} * 2 : 0;
    // Past the last column a place that exists is named, and nothing of it is read.
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i)
      copy16(to + static_cast<std::uint32_t>(i * 16 * kLineBytes), in ? x[i] + byte : x[i] - piece * 16,
             valid[i] && in);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      copy16(to + static_cast<std::uint32_t>((kRows + i * 16) * kLineBytes),
             in ? weight[i] + byte : weight[i] - piece * 16, inside[i] && in);
  }
};

// Blocks (x: weight rows, y: tile). Each of four warps has 32 weight rows: of gate and up 16 each, the same.
template <int kRows, bool kGated>
__global__ void __launch_bounds__(kThreads) experts_kernel(const __grid_constant__ ExpertArgs a) {
  using T = Tile<kRows>;
  constexpr int kRowTiles = kRows / 16;
  extern __shared__ __align__(128) char stages[];
  begin_kernel();
  if (static_cast<std::int32_t>(blockIdx.y) >= *a.places.tile_count) return;
  const int2 tile = a.places.tiles[blockIdx.y];
  const int end = a.places.begin[tile.x + 1];
  const int out0 = static_cast<int>(blockIdx.x) * (kGated ? kWeightRows / 2 : kWeightRows);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::uint32_t shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(stages));
  Loader<kRows, kGated> loader(a, shared, tile.x, tile.y, end, out0);
  const int steps = (a.cols + kStepCols - 1) / kStepCols;
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    if (s < steps) loader.load(s, s * kStepCols);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float sum[kRowTiles][4][4] = {};
  // First weight row of each pair of 8-row tiles that a warp loads at once.
  const int pair_row[2] = {kGated ? warp * 16 : warp * 32, kGated ? 64 + warp * 16 : warp * 32 + 16};
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(T::kStages - 2) : "memory");
    __syncthreads();
    const int ahead = step + T::kStages - 1;
    if (ahead < steps) loader.load(ahead % T::kStages, ahead * kStepCols);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const std::uint32_t x_base = shared + static_cast<std::uint32_t>(step % T::kStages * T::kStageBytes);
    const std::uint32_t w_base = x_base + kRows * kLineBytes;
#pragma unroll
    for (int k = 0; k < kStepCols / 16; ++k) {
      std::uint32_t w[2][4];
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int row = pair_row[p] + (lane & 7) + (lane & 16) / 2;
        load_matrices(w[p], w_base + static_cast<std::uint32_t>(line_offset(row, 2 * k + (lane >> 3 & 1))));
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        std::uint32_t x[4];
        const int row = m * 16 + (lane & 15);
        load_matrices(x, x_base + static_cast<std::uint32_t>(line_offset(row, 2 * k + lane / 16)));
#pragma unroll
        for (int n = 0; n < 4; ++n)
          mma<false>(sum[m][n], x[0], x[1], x[2], x[3], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
  const int g = lane / 4, t = lane % 4;
  const auto bias_at = [&](int which, int out) {
    return a.bias[which] && out < a.outs ? a.bias[which][std::int64_t{tile.x} * a.outs + out] : 0.0f;
  };
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = tile.y + m * 16 + half * 8 + g;
      if (place >= end) continue;
#pragma unroll
      for (int n = 0; n < (kGated ? 2 : 4); ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int out = out0 + (kGated ? warp * 16 : warp * 32) + n * 8 + 2 * t + j;
          if (out >= a.outs) continue;
          const float first = sum[m][n][half * 2 + j] + bias_at(0, out);
          const std::int64_t at = std::int64_t{place} * a.outs + out;
          if constexpr (kGated) {
            const float up = sum[m][n + 2][half * 2 + j] + bias_at(1, out);
            reinterpret_cast<Bf16*>(a.y)[at] = __float2bfloat16_rn(activate(a.kind, a.limit, first, up));
          } else {
            reinterpret_cast<float*>(a.y)[at] = first;
          }
        }
      }
    }
  }
}

// y[row] = sum over k of weight[row, k] * part[place of (row, k)], in the order of k.
__global__ void __launch_bounds__(256)
    combine_kernel(const float* part, const std::int32_t* place, const float* weight, int top_k, Rows y) {
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
  if (i >= y.n) return;
  float sum[8] = {};
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t pair = row * top_k + k;
    const float factor = weight[pair];
    float x[8];
    load8(reinterpret_cast<const char*>(part + std::int64_t{place[pair]} * y.n), DType::f32, y.n % 4 == 0, i,
          y.n, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += factor * x[j];
  }
  store8(item_at(y, row), y.type, y.vector, i, y.n, sum);
}

struct Scratch {
  Places places;
  Bf16* x = nullptr;      // [rows, hidden], when the input is not bf16
  Bf16* act = nullptr;    // [places, inter]
  float* part = nullptr;  // [places, hidden]
};

std::int64_t most_tiles(std::int64_t pairs, std::int64_t experts, int tile_rows) {
  return std::min(pairs, pairs / tile_rows + experts);
}

std::int64_t carve(char* base, std::int64_t rows, std::int64_t top_k, std::int64_t hidden, std::int64_t inter,
                   Scratch& s) {
  Carver carver(base);
  const std::int64_t pairs = rows * top_k;
  s.places.begin = carver.take<std::int32_t>(kMaxExperts + 1);
  s.places.pair = carver.take<std::int32_t>(pairs);
  s.places.place = carver.take<std::int32_t>(pairs);
  s.places.tiles = carver.take<int2>(most_tiles(pairs, kMaxExperts, 16));
  s.places.tile_count = carver.take<std::int32_t>(1);
  s.x = carver.take<Bf16>(rows * hidden);
  s.act = carver.take<Bf16>(pairs * inter);
  s.part = carver.take<float>(pairs * hidden);
  return carver.used();
}

template <bool kGated>
void multiply(const ExpertArgs& a, int tile_rows, std::int64_t tiles, platform::Stream& stream) {
  static const bool allowed = [] {
    allow_shared(experts_kernel<16, kGated>, Tile<16>::kBytes);
    allow_shared(experts_kernel<64, kGated>, Tile<64>::kBytes);
    return true;
  }();
  static_cast<void>(allowed);
  const dim3 grid(blocks_for(a.outs, kGated ? kWeightRows / 2 : kWeightRows), static_cast<unsigned>(tiles));
  if (tile_rows == 16)
    return launch(stream, experts_kernel<16, kGated>, grid, dim3(kThreads), Tile<16>::kBytes, 1, a);
  launch(stream, experts_kernel<64, kGated>, grid, dim3(kThreads), Tile<64>::kBytes, 1, a);
}

bool is_expert_weight(const WeightView& weight) {
  return weight.format == WeightFormat::bf16 && reinterpret_cast<std::uintptr_t>(weight.data) % 16 == 0 &&
         weight.row_bytes % 16 == 0 && weight.expert_bytes % 16 == 0;
}

}  // namespace

std::int64_t moe_workspace_bytes(const OpsLimits& limits) {
  if (limits.max_expert_inter == 0) return 0;
  Scratch s;
  return carve(nullptr, std::min(limits.max_rows, kRowsAtOnce), limits.max_top_k, limits.max_hidden,
               limits.max_expert_inter, s);
}

void CudaOps::moe_mlp(const MoeMlp& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x) && is_matrix(args.y) && args.top_k >= 1 && args.gate.experts <= kMaxExperts &&
                  args.gate.experts == args.up.experts && args.gate.experts == args.down.experts &&
                  args.gate.cols == args.x.cols() && args.up.cols == args.x.cols() &&
                  args.gate.rows == args.up.rows && args.down.cols == args.gate.rows &&
                  args.down.rows == args.y.cols() && args.y.cols() == args.x.cols(),
              "x {} x {}, {} experts of {} x {}, down {} x {}", args.x.rows(), args.x.cols(),
              args.gate.experts, args.gate.rows, args.gate.cols, args.down.rows, args.down.cols);
  QUIRE_CHECK(is_expert_weight(args.gate) && is_expert_weight(args.up) && is_expert_weight(args.down) &&
                  args.x.cols() % 8 == 0 && args.gate.rows % 8 == 0,
              "experts of {} x {} in {}: bf16 at 16-byte places is what there is", args.gate.rows,
              args.x.cols(), weight_format_info(args.gate.format).name);
  const std::int64_t hidden = args.x.cols(), inter = args.gate.rows, experts = args.gate.experts;
  for (std::int64_t row = 0; row < args.x.rows(); row += kRowsAtOnce) {
    const std::int64_t rows = std::min(kRowsAtOnce, args.x.rows() - row), pairs = rows * args.top_k;
    Scratch s;
    const std::int64_t bytes = carve(workspace_.scratch(), rows, args.top_k, hidden, inter, s);
    QUIRE_CHECK(bytes <= workspace_.scratch_bytes(), "{} rows of top {} need {} bytes of {}", rows,
                args.top_k, bytes, workspace_.scratch_bytes());
    // Bits do not depend on the tile, so its size may follow the number of rows.
    const int tile_rows = pairs >= 24 * experts ? 64 : 16;
    const std::int64_t tiles = most_tiles(pairs, experts, tile_rows);
    launch(stream, sort_kernel, dim3(1), dim3(kPlanThreads), 0, 1, args.expert + row * args.top_k,
           static_cast<std::int32_t>(pairs), static_cast<std::int32_t>(experts), tile_rows, s.places);
    TensorView x = args.x.rows_slice(row, rows);
    if (x.dtype != DType::bf16 || !rows_of(x).vector) {
      const TensorView converted = TensorView::matrix(s.x, DType::bf16, rows, hidden);
      copy({x, converted}, stream);
      x = converted;
    }
    ExpertArgs first{};
    first.x = static_cast<const char*>(x.data);
    first.x_stride = x.stride[0] * 2;
    first.cols = static_cast<std::int32_t>(hidden);
    first.outs = static_cast<std::int32_t>(inter);
    first.top_k = args.top_k;
    first.kind = args.kind;
    first.limit = args.limit;
    first.places = s.places;
    ExpertArgs second = first;
    const auto set = [](ExpertArgs& a, int which, const WeightView& weight, const float* bias) {
      a.weight[which] = static_cast<const char*>(weight.data);
      a.row_bytes[which] = weight.row_bytes;
      a.expert_bytes[which] = weight.expert_bytes;
      a.bias[which] = bias;
    };
    set(first, 0, args.gate, args.gate_bias);
    set(first, 1, args.up, args.up_bias);
    first.y = reinterpret_cast<char*>(s.act);
    multiply<true>(first, tile_rows, tiles, stream);
    set(second, 0, args.down, args.down_bias);
    second.x = reinterpret_cast<const char*>(s.act);
    second.x_stride = inter * 2;
    second.cols = static_cast<std::int32_t>(inter);
    second.outs = static_cast<std::int32_t>(hidden);
    second.top_k = 0;
    second.y = reinterpret_cast<char*>(s.part);
    multiply<false>(second, tile_rows, tiles, stream);
    const auto threads =
        static_cast<unsigned>(std::clamp<std::int64_t>((hidden / 8 + 31) / 32 * 32, 32, 256));
    launch(stream, combine_kernel,
           dim3(static_cast<unsigned>(rows), blocks_for(hidden, std::int64_t{threads} * 8)), dim3(threads), 0,
           1, s.part, s.places.place, args.weight + row * args.top_k, args.top_k,
           rows_of(args.y.rows_slice(row, rows)));
  }
}

}  // namespace quire::ops::cuda
