// Parts of one softmax into the whole: what attention::merge and the cascade launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "attention/backends/cuda/backend.h"
#include "attention/backends/cuda/launch.h"
#include "platform/cuda/stream.h"

namespace quire::attention::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ T to_type(float x);
template <>
__device__ float to_type<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 to_type<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __half to_type<__half>(float x) {
  return __float2half_rn(x);
}

// One warp per row and head. Weights are relative to the largest lse, so nothing overflows; every element is
// read before it is written, by the same thread, so `out` may be part 0's.
template <class T>
__global__ void __launch_bounds__(kThreads) join(const __grid_constant__ JoinParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (warp >= p.rows * p.heads) return;
  const std::int64_t row = warp / p.heads;
  const std::int32_t head = static_cast<std::int32_t>(warp % p.heads);
  float weights[kMaxMergeParts];
  float largest = -INFINITY;
  for (int i = 0; i < p.parts; ++i) {
    const float lse = p.lses[i][warp];
    if (lse > largest || isnan(lse)) largest = lse;  // a NaN stays, and makes every weight one
  }
  const bool empty = largest == -INFINITY;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kMaxMergeParts; ++i) {
    weights[i] = i < p.parts && !empty ? expf(p.lses[i][warp] - largest) : 0.0f;
    total += weights[i];
  }
  const float sink = p.sink != nullptr && !empty ? expf(p.sink[head] - largest) : 0.0f;
  const float factor = empty ? 0.0f : 1.0f / (total + sink);
  T* out = static_cast<T*>(p.out) + row * p.out_row_stride + head * p.out_head_stride;
  for (std::int32_t d = lane; d < p.dim; d += 32) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxMergeParts; ++i)
      if (i < p.parts && weights[i] != 0) sum += weights[i] * factor * p.sums[i][warp * p.dim + d];
    out[d] = to_type<T>(sum);
  }
  __syncwarp();
  if (lane == 0 && p.lse != nullptr) p.lse[warp] = empty ? -INFINITY : largest + logf(total);
}

__global__ void __launch_bounds__(kThreads) clear(float* lse, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) lse[i] = -INFINITY;
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(std::max<std::int64_t>(1, (threads + kThreads - 1) / kThreads));
}

}  // namespace

void launch_join(const JoinParams& params, platform::Stream& stream) {
  const cudaStream_t native = platform::cuda::native(stream);
  const unsigned blocks = blocks_for(params.rows * params.heads * 32);
  if (params.out_type == DType::bf16)
    join<__nv_bfloat16><<<blocks, kThreads, 0, native>>>(params);
  else if (params.out_type == DType::f16)
    join<__half><<<blocks, kThreads, 0, native>>>(params);
  else
    join<float><<<blocks, kThreads, 0, native>>>(params);
  QUIRE_CUDA_CHECK(cudaGetLastError());
}

void clear_lse(float* lse, std::int64_t count, platform::Stream& stream) {
  clear<<<blocks_for(count), kThreads, 0, platform::cuda::native(stream)>>>(lse, count);
  QUIRE_CUDA_CHECK(cudaGetLastError());
}

void merge_parts(const MergeArgs& args, platform::Stream& stream) {
  JoinParams join;
  join.parts = args.part_count;
  for (int i = 0; i < args.part_count; ++i) {
    join.sums[i] = args.parts[i].out;
    join.lses[i] = args.parts[i].lse;
  }
  join.rows = args.rows;
  join.heads = args.heads;
  join.dim = args.dim;
  join.out = args.out;
  join.out_row_stride = args.out_row_stride;
  join.out_head_stride = args.dim;
  join.lse = args.lse;
  join.sink = args.sink;
  launch_join(join, stream);
}

}  // namespace quire::attention::cuda
