// Activation rows rounded to e4m3 with one scale a row, for products of fp8 by fp8 (linear.cu).
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostKeep = 8;  // vectors of eight bf16 that a thread keeps between the two passes
// The least scale: its inverse is finite. So a row of zeros, or of next to nothing, needs no case of its own.
constexpr float kLeastScale = 0x1p-126f;

// `bits`: the largest magnitude of a row as the bits of a float, which order as magnitudes do, infinity above
// all numbers and NaN above that. A row that holds either is NaN as a whole, by its scale alone.
__device__ __forceinline__ float scale_of(std::uint32_t bits) {
  if (bits >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
  return fmaxf(__uint_as_float(bits) / kFp8E4m3Max, kLeastScale);
}

__device__ __forceinline__ std::uint32_t block_max(std::uint32_t x) {
  __shared__ std::uint32_t shared[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) x = max(x, shared[w]);
  return x;
}

// A block per row of bf16 at 16-byte places, kept in registers: all its loads are under way at once.
template <int kKeep>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(const char* x, std::int64_t row_bytes, int n, std::uint8_t* values, float* scales) {
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  uint4 keep[kKeep];
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    const int i = (k * kThreads + static_cast<int>(threadIdx.x)) * 8;
    keep[k] = i < n ? *reinterpret_cast<const uint4*>(x + row * row_bytes + i * 2) : make_uint4(0, 0, 0, 0);
  }
  std::uint32_t two = 0;  // largest magnitudes of the lower and of the upper halves
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    for (const std::uint32_t word : {keep[k].x, keep[k].y, keep[k].z, keep[k].w})
      two = __vmaxu2(two, word & 0x7fff7fffu);
  }
  const float scale = scale_of(block_max(max(two << 16, two & 0xffff0000u)));
  const float inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    const int i = (k * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (i >= n) return;
    const std::uint32_t words[4] = {keep[k].x, keep[k].y, keep[k].z, keep[k].w};
    float y[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[2 * j] = __uint_as_float(words[j] << 16) * inverse;
      y[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u) * inverse;
    }
    store8(reinterpret_cast<char*>(values) + row * n, DType::fp8_e4m3, true, i, n, y);
  }
}

// The same of any type, place and width: the row is read twice.
__global__ void __launch_bounds__(kThreads) round_any_kernel(Rows x, std::uint8_t* values, float* scales) {
  begin_kernel();
  const std::int64_t row = blockIdx.x, n = x.n;
  const char* from = head_at(x, row, 0);
  float y[8];
  std::uint32_t largest = 0;
  for (std::int64_t i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    load8(from, x.type, x.vector, i, n, y);
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, __float_as_uint(y[j]) & 0x7fffffffu);
  }
  const float scale = scale_of(block_max(largest));
  const float inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  for (std::int64_t i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    load8(from, x.type, x.vector, i, n, y);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] *= inverse;
    store8(reinterpret_cast<char*>(values) + row * n, DType::fp8_e4m3, true, i, n, y);
  }
}

}  // namespace

void round_rows(const TensorView& x, const RoundedRows& to, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(x) && x.cols() % 16 == 0, "rounds {} x {}", x.rows(), x.cols());
  const Rows rows = rows_of(x);
  const dim3 grid(static_cast<unsigned>(x.rows())), block(kThreads);
  if (rows.type != DType::bf16 || !rows.vector || rows.n > kMostKeep * kThreads * 8)
    return launch(stream, round_any_kernel, grid, block, 0, 1, rows, to.values, to.scales);
  const auto kernel = rows.n <= kThreads * 8    ? round_rows_kernel<1>
                      : rows.n <= kThreads * 16 ? round_rows_kernel<2>
                                                : round_rows_kernel<kMostKeep>;
  launch(stream, kernel, grid, block, 0, 1, rows.data, rows.row_stride * 2, rows.n, to.values, to.scales);
}

}  // namespace quire::ops::cuda
