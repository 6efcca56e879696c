// The router: of every row's logits the chosen experts and their weights.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxGroups = 64;
constexpr int kWarps = 4;

struct Best {
  float value;
  int id;
};
// The larger value, ties to the lower id; id -1 is nothing.
__device__ __forceinline__ Best better(Best a, Best b) {
  if (a.id < 0) return b;
  if (b.id < 0) return a;
  if (b.value > a.value || (b.value == a.value && b.id < a.id)) return b;
  return a;
}

// The k largest of score[0..n), best first, by the whole warp; what is taken becomes NaN.
__device__ void take_top(float* score, int n, int k, std::int32_t* chosen, int lane) {
  for (int i = 0; i < k; ++i) {
    Best best{0.0f, -1};
    for (int e = lane; e < n; e += 32) {
      if (!isnan(score[e])) best = better(best, {score[e], e});
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, step),
                           __shfl_xor_sync(0xffffffffu, best.id, step)});
    __syncwarp();                    // all lanes have read before one writes
    const int id = max(best.id, 0);  // all NaN: any legal expert; the logits say so already
    if (lane == 0) {
      chosen[i] = id;
      score[id] = __int_as_float(0x7fc00000);
    }
    __syncwarp();
  }
}

// Groups outside the best `top_groups` (by the sum of their best two) get -infinity.
__device__ void refuse_groups(const RouterSpec& spec, float* score, float* group_score, std::int32_t* kept,
                              int lane) {
  const int size = spec.experts / spec.groups;
  for (int g = lane; g < spec.groups; g += 32) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      if (score[e] > best) {
        second = best;
        best = score[e];
      } else {
        second = fmaxf(second, score[e]);
      }
    }
    group_score[g] = size > 1 ? best + second : best;
  }
  __syncwarp();
  take_top(group_score, spec.groups, spec.top_groups, kept, lane);
  for (int e = lane; e < spec.experts; e += 32) {
    bool is_kept = false;
    for (int i = 0; i < spec.top_groups; ++i) is_kept = is_kept || kept[i] == e / size;
    if (!is_kept) score[e] = -INFINITY;
  }
  __syncwarp();
}

struct RouteArgs {
  RouterSpec spec;
  Rows logits;
  std::int64_t rows;
  const float* correction_bias;
  std::int32_t* expert;
  float* weight;
};

// One warp per row; a lane has every 32nd expert.
__global__ void __launch_bounds__(kWarps * 32) route_kernel(const __grid_constant__ RouteArgs a) {
  __shared__ float scores[kWarps][kMaxExperts], values[kWarps][kMaxExperts], groups[kWarps][kMaxGroups];
  __shared__ std::int32_t kept[kWarps][kMaxGroups];
  begin_kernel();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp;
  if (row >= a.rows) return;
  const RouterSpec& spec = a.spec;
  const char* logits = head_at(a.logits, row, 0);
  float* score = scores[warp];
  float* value = values[warp];
  const bool sigmoids = spec.kind == RouterKind::sigmoid_group_top_k;
  float largest = -INFINITY;
  for (int e = lane; e < spec.experts; e += 32) {
    const float x = load_one(logits, a.logits.type, e);
    value[e] = sigmoids ? sigmoid(x) : x;
    score[e] = sigmoids && a.correction_bias ? value[e] + a.correction_bias[e] : value[e];
    largest = fmaxf(largest, x);
  }
  __syncwarp();
  if (spec.kind == RouterKind::softmax_top_k) {
    largest = warp_max(largest);
    float sum = 0.0f;
    for (int e = lane; e < spec.experts; e += 32) sum += value[e] = expf(value[e] - largest);
    sum = warp_sum(sum);
    for (int e = lane; e < spec.experts; e += 32) score[e] = value[e] = value[e] / sum;
    __syncwarp();
  }
  if (sigmoids && spec.groups > 1) refuse_groups(spec, score, groups[warp], kept[warp], lane);
  std::int32_t* chosen = a.expert + row * spec.top_k;
  take_top(score, spec.experts, spec.top_k, chosen, lane);
  if (lane != 0) return;
  // A handful of weights: one lane in the order of the choice.
  float* weight = a.weight + row * spec.top_k;
  float sum = sigmoids ? 1e-20f : 0.0f;
  const bool softmax_chosen = spec.kind == RouterKind::top_k_softmax;
  const float shift = value[chosen[0]];
  for (int i = 0; i < spec.top_k; ++i) {
    weight[i] = softmax_chosen ? expf(value[chosen[i]] - shift) : value[chosen[i]];
    sum += weight[i];
  }
  const bool divide = softmax_chosen || spec.renormalise;
  for (int i = 0; i < spec.top_k; ++i) weight[i] = (divide ? weight[i] / sum : weight[i]) * spec.scaling;
}

}  // namespace

void CudaOps::route(const Route& args, platform::Stream& stream) {
  const RouterSpec& spec = args.spec;
  QUIRE_CHECK(
      is_matrix(args.logits) && args.logits.cols() == spec.experts && spec.experts <= kMaxExperts &&
          spec.top_k >= 1 && spec.top_k <= spec.experts && spec.groups >= 1 && spec.groups <= kMaxGroups &&
          spec.experts % spec.groups == 0 && spec.top_groups >= 1 && spec.top_groups <= spec.groups &&
          spec.top_k <= spec.experts / spec.groups * spec.top_groups,
      "experts {} top {} groups {} top groups {}", spec.experts, spec.top_k, spec.groups, spec.top_groups);
  const RouteArgs a{spec,        rows_of(args.logits), args.logits.rows(), args.correction_bias,
                    args.expert, args.weight};
  launch(stream, route_kernel, dim3(blocks_for(a.rows, kWarps)), dim3(kWarps * 32), 0, 1, a);
}

}  // namespace quire::ops::cuda
