// Activation rows for products with e4m3 weights: in e4m3 (linear.cu) or f16 (gemv.cu), with one scale a row.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_scale.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostKeep = 8;  // vectors of eight bf16 that a thread keeps between the two passes
// The least scale of e4m3: its inverse is finite. So a row of zeros, or of next to nothing, needs no case of
// its own.
constexpr float kLeastScale = 0x1p-126f;

// By the bits of a row's largest magnitude. A row of e4m3 that holds NaN or an infinity is NaN as a whole, by
// its scale alone; f16 has both.
template <DType kTo>
__device__ __forceinline__ float scale_of(std::uint32_t largest) {
  if (kTo == DType::f16) return f16_scale_of(largest);
  if (largest >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
  return fmaxf(__uint_as_float(largest) / kFp8E4m3Max, kLeastScale);
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
template <DType kTo, int kKeep>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(const char* x, std::int64_t row_bytes, int n, char* values, float* scales) {
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  uint4 keep[kKeep];
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    const int i = (k * kThreads + static_cast<int>(threadIdx.x)) * 8;
    keep[k] = i < n ? *reinterpret_cast<const uint4*>(x + row * row_bytes + i * 2) : make_uint4(0, 0, 0, 0);
  }
  std::uint32_t two = 0;
#pragma unroll
  for (int k = 0; k < kKeep; ++k) two = larger_halves(two, keep[k]);
  const float scale = scale_of<kTo>(block_max(larger_half(two)));
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
    store8(values + row * n * element_bytes(kTo), kTo, true, i, n, y);
  }
}

// The same of any type, place and width: the row is read twice.
template <DType kTo>
__global__ void __launch_bounds__(kThreads) round_any_kernel(Rows x, char* values, float* scales) {
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
  const float scale = scale_of<kTo>(block_max(largest));
  const float inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  for (std::int64_t i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    load8(from, x.type, x.vector, i, n, y);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] *= inverse;
    store8(values + row * n * element_bytes(kTo), kTo, true, i, n, y);
  }
}

template <DType kTo>
void round_to(const TensorView& x, const RoundedRows& to, platform::Stream& stream) {
  const Rows rows = rows_of(x);
  const dim3 grid(static_cast<unsigned>(x.rows())), block(kThreads);
  char* values = static_cast<char*>(to.values);
  if (rows.type != DType::bf16 || !rows.vector || rows.n > kMostKeep * kThreads * 8)
    return launch(stream, round_any_kernel<kTo>, grid, block, 0, 1, rows, values, to.scales);
  const auto kernel = rows.n <= kThreads * 8    ? round_rows_kernel<kTo, 1>
                      : rows.n <= kThreads * 16 ? round_rows_kernel<kTo, 2>
                                                : round_rows_kernel<kTo, kMostKeep>;
  launch(stream, kernel, grid, block, 0, 1, rows.data, rows.row_stride * 2, rows.n, values, to.scales);
}

}  // namespace

void round_rows(const TensorView& x, const RoundedRows& to, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(x) && x.cols() % 16 == 0, "rounds {} x {}", x.rows(), x.cols());
  QUIRE_CHECK(to.type == DType::fp8_e4m3 || to.type == DType::f16, "to {}", to_string(to.type));
  to.type == DType::f16 ? round_to<DType::f16>(x, to, stream) : round_to<DType::fp8_e4m3>(x, to, stream);
}

}  // namespace quire::ops::cuda
