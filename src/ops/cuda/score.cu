// score: of every row of logits the log-probability of a target, the best token, and the best few. One block
// per row; what it reads more than once comes from the L2 cache.
#include <cstdint>
#include <limits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kNobody = std::numeric_limits<int>::max();

struct Best {
  float value = -INFINITY;
  std::int32_t id = kNobody;
};
// The order of tokens: value down, id up.
__device__ __forceinline__ bool before(const Best& a, const Best& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

struct ScoreShared {
  float values[32];
  std::int32_t ids[32];
  double sums[32];
};

__device__ Best block_best(Best best, ScoreShared& shared) {
  const auto reduce = [&] {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const Best other{__shfl_xor_sync(0xffffffffu, best.value, step),
                       __shfl_xor_sync(0xffffffffu, best.id, step)};
      if (before(other, best)) best = other;
    }
  };
  reduce();
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) shared.values[threadIdx.x / 32] = best.value, shared.ids[threadIdx.x / 32] = best.id;
  __syncthreads();
  best = {shared.values[lane], shared.ids[lane]};
  reduce();
  __syncthreads();
  return best;
}

// f(value, id) for this thread's values of the row.
template <class F>
__device__ void for_values(const char* row, const Rows& logits, F&& f) {
  for (int i = static_cast<int>(threadIdx.x) * 8; i < logits.n; i += kThreads * 8) {
    float x[8];
    load8(row, logits.type, logits.vector, i, logits.n, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j < logits.n) f(x[j], i + j);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ Score a, Rows logits) {
  __shared__ ScoreShared shared;
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  const char* x = item_at(logits, row);
  const bool writes = threadIdx.x == 0;
  Best mine;
  int bad = 0, possible = 0;
  for_values(x, logits, [&](float v, int id) {
    bad |= !(v < INFINITY);
    possible |= v > -INFINITY;
    if (v == v && before({v, id}, mine)) mine = {v, id};
  });
  const bool sound = !__syncthreads_or(bad) && __syncthreads_or(possible);
  const Best best = block_best(mine, shared);
  double sum = 0.0;
  for_values(x, logits, [&](float v, int) { sum += static_cast<double>(expf(v - best.value)); });
  const double total = static_cast<double>(best.value) + log(block_sum(sum, shared.sums));
  const float nan = __int_as_float(0x7fc00000);
  if (writes && a.argmax) a.argmax[row] = sound ? best.id : -1;
  if (writes && a.logprob) {
    const std::int32_t target = a.target ? a.target[row] : -1;
    if (target >= logits.n) __trap();  // a bug of the caller: the host cannot see it
    a.logprob[row] =
        target < 0 ? nan : static_cast<float>(static_cast<double>(load_one(x, logits.type, target)) - total);
  }
  Best last = best;
  for (std::int32_t k = 0; k < a.top_n; ++k) {
    if (k > 0) {
      Best next;
      for_values(x, logits, [&](float v, int id) {
        const Best here{v, id};
        if (v == v && before(last, here) && before(here, next)) next = here;
      });
      last = block_best(next, shared);
    }
    if (!writes) continue;
    const bool there = last.id != kNobody;
    a.top_id[row * a.top_n + k] = there ? last.id : -1;
    a.top_logprob[row * a.top_n + k] =
        there ? static_cast<float>(static_cast<double>(last.value) - total) : nan;
  }
}

}  // namespace

void CudaOps::score(const Score& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.logits) && (args.top_n == 0 || (args.top_id && args.top_logprob)), "top_n={}",
              args.top_n);
  launch(stream, score_kernel, dim3(static_cast<unsigned>(args.logits.rows())), dim3(kThreads), 0, 1, args,
         rows_of(args.logits));
}

}  // namespace quire::ops::cuda
