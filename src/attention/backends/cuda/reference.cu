// The reference row on CUDA: the contract in double precision, one block per row and head, one thread per
// key, written from the contract and sharing nothing with the kernels that it judges.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/backends/cuda/backend.h"
#include "base/check.h"
#include "platform/cuda/stream.h"

namespace quire::attention::cuda {
namespace {

constexpr int kChunk = 128;  // keys at a time, at absolute multiples: the order of sums is the keys' own

struct ReferenceParams {
  Problem problem;
  StepShape shape;
  Args args;
};

__device__ double load_value(DType type, const char* at) {
  switch (type) {
    case DType::f32:
      return *reinterpret_cast<const float*>(at);
    case DType::bf16:
      return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at));
    case DType::f16:
      return __half2float(*reinterpret_cast<const __half*>(at));
    default:
      break;
  }
  const int bits = *reinterpret_cast<const unsigned char*>(at);  // e4m3: sign, 4 bits of bias 7, 3 bits
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return nan("");
  const double value = exponent == 0 ? ldexp(static_cast<double>(mantissa), -9)
                                     : ldexp(static_cast<double>(mantissa + 8), exponent - 10);
  return (bits & 0x80) != 0 ? -value : value;
}

__device__ void store_value(DType type, void* base, std::int64_t index, double value) {
  if (type == DType::f32)
    static_cast<float*>(base)[index] = static_cast<float>(value);
  else if (type == DType::bf16)
    static_cast<__nv_bfloat16*>(base)[index] = __float2bfloat16_rn(static_cast<float>(value));
  else
    static_cast<__half*>(base)[index] = __double2half(value);
}

__device__ std::int64_t bytes_of(DType type) {
  return type == DType::f32 ? 4 : type == DType::fp8_e4m3 ? 1 : 2;
}

struct Row {
  std::int64_t row = 0;
  std::int32_t sequence = -1;
  std::int32_t head = 0;
  std::int32_t kv_head = 0;
  std::int64_t kv_len = 0;
  std::int64_t p = 0;  // key index of the row
};

__device__ Row row_of(const ReferenceParams& c, std::int64_t row, std::int32_t head) {
  const StepShape& s = c.shape;
  Row r;
  r.row = row;
  r.head = head;
  r.kv_head = head / (c.problem.q_heads / c.problem.kv_heads);
  for (std::int32_t i = 0; i < s.batch; ++i)
    if (row >= s.q_offsets[i] && row < s.q_offsets[i + 1]) r.sequence = i;
  if (r.sequence < 0) return r;
  r.kv_len = s.kv_lens[r.sequence];
  r.p = r.kv_len - (s.q_offsets[r.sequence + 1] - row);
  if (s.tree_bits != nullptr) r.p = static_cast<std::int64_t>(s.tree_base[r.sequence]) + s.tree_depth[row];
  return r;
}

__device__ bool sees(const ReferenceParams& c, const Row& r, std::int64_t key) {
  const StepShape& s = c.shape;
  if (key < 0 || key >= r.kv_len) return false;
  if (s.part_begin != nullptr && (key < s.part_begin[r.sequence] || key >= s.part_end[r.sequence]))
    return false;
  if (s.tree_bits != nullptr && key >= s.tree_base[r.sequence]) {
    const std::int64_t node = key - s.tree_base[r.sequence];
    return node < s.tree_words * 64LL &&
           ((s.tree_bits[r.row * s.tree_words + node / 64] >> (node % 64)) & 1) != 0;
  }
  switch (s.mask) {
    case MaskKind::causal:
      return key <= r.p;
    case MaskKind::window:
      return key <= r.p && r.p - key < s.mask_width;
    case MaskKind::chunked:
      return key <= r.p && key / s.mask_width == r.p / s.mask_width;
    case MaskKind::full:
      return true;
    case MaskKind::rows:
      return key >= s.row_begin[r.row] && key < s.row_end[r.row];
  }
  return false;
}

struct KeyPlace {
  std::int64_t page = 0;
  std::int64_t token = 0;
};
__device__ KeyPlace place_of(const ReferenceParams& c, const Row& r, std::int64_t key) {
  if (c.problem.source == KvSource::dense) return {0, c.shape.kv_offsets[r.sequence] + key};
  const std::int32_t size = c.args.kv.page_size;
  return {c.shape.block_table[r.sequence * c.shape.table_stride + key / size], key % size};
}
__device__ std::int64_t offset_of(const KvStrides& stride, const KeyPlace& at, std::int64_t head) {
  return at.page * stride.page + head * stride.head + at.token * stride.token;
}
__device__ double scale_of(const KvView& kv, const float* scales, const KeyPlace& at, std::int64_t head) {
  switch (kv.format.scale) {
    case KvScaleKind::tensor:
      return scales[0];
    case KvScaleKind::layer_head:
      return scales[head];
    case KvScaleKind::token_head:
      return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(scales) +
                                             offset_of(kv.scale_stride, at, head));
    default:
      return 1;
  }
}

__device__ double score_of(const ReferenceParams& c, const Row& r, const KeyPlace& at) {
  const KvView& kv = c.args.kv;
  const char* k = static_cast<const char*>(kv.k) + offset_of(kv.k_stride, at, r.kv_head);
  const std::int64_t q_bytes = bytes_of(c.problem.q_type);
  const char* q = static_cast<const char*>(c.args.q) +
                  (r.row * c.args.q_row_stride + r.head * c.args.q_head_stride) * q_bytes;
  double dot = 0;
  for (std::int64_t d = 0; d < c.problem.qk_dim; ++d)
    dot +=
        load_value(c.problem.q_type, q + d * q_bytes) * load_value(kv.format.k_type, k + d * kv.k_stride.dim);
  double score =
      static_cast<double>(c.args.scale) * c.args.q_descale * scale_of(kv, kv.k_scale, at, r.kv_head) * dot;
  if (c.args.softcap > 0) score = c.args.softcap * tanh(score / c.args.softcap);
  return score;
}

// The weights of a chunk, as its threads made them.
struct Chunk {
  double score[kChunk];   // -inf: not visible
  double weight[kChunk];  // with V's scale
  std::int64_t v[kChunk];
};

// Running state, the same in every thread.
struct Running {
  double largest;
  double total;
};

// `positions` keys, or list entries, each turned to a key by key_at.
template <class KeyAt>
__device__ Running attend_row(const ReferenceParams& c, const Row& r, std::int64_t positions, KeyAt key_at,
                              Chunk& chunk, double* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const KvView& kv = c.args.kv;
  Running run{-INFINITY, 0};
  for (std::int64_t base = 0; base < positions; base += kChunk) {
    const std::int64_t key = base + thread < positions ? key_at(base + thread) : -1;
    const bool visible = sees(c, r, key);
    if (__syncthreads_or(visible) == 0) continue;
    KeyPlace at;
    if (visible) at = place_of(c, r, key);
    chunk.score[thread] = visible ? score_of(c, r, at) : -INFINITY;
    chunk.v[thread] = visible ? offset_of(kv.v_stride, at, r.kv_head) : -1;
    __syncthreads();
    double largest = run.largest;
    for (int i = 0; i < kChunk; ++i) largest = fmax(largest, chunk.score[i]);
    const double shrink = run.largest == -INFINITY ? 0 : exp(run.largest - largest);
    const double weight = visible ? exp(chunk.score[thread] - largest) : 0;
    __syncthreads();
    chunk.score[thread] = weight;
    chunk.weight[thread] = visible ? weight * scale_of(kv, kv.v_scale, at, r.kv_head) : 0;
    __syncthreads();
    run.total *= shrink;
    for (int i = 0; i < kChunk; ++i) run.total += chunk.score[i];
    run.largest = largest;
    for (std::int64_t d = thread; d < c.problem.v_dim; d += kChunk) {
      double sum = sums[d] * shrink;
      for (int i = 0; i < kChunk; ++i)
        if (chunk.v[i] >= 0)
          sum += chunk.weight[i] * load_value(kv.format.v_type, static_cast<const char*>(kv.v) + chunk.v[i] +
                                                                    d * kv.v_stride.dim);
      sums[d] = sum;
    }
    __syncthreads();
  }
  return run;
}

__global__ void __launch_bounds__(kChunk) reference(const __grid_constant__ ReferenceParams c) {
  extern __shared__ double sums[];  // [v_dim]
  __shared__ Chunk chunk;
  const int thread = static_cast<int>(threadIdx.x);
  const Row r = row_of(c, blockIdx.x, static_cast<std::int32_t>(blockIdx.y));
  for (std::int64_t d = thread; d < c.problem.v_dim; d += kChunk) sums[d] = 0;
  Running run{-INFINITY, 0};
  const SparseIndex& sparse = c.args.sparse;
  if (r.sequence >= 0 && sparse.index == nullptr) {
    run = attend_row(
        c, r, r.kv_len, [](std::int64_t i) { return i; }, chunk, sums);
  } else if (r.sequence >= 0) {
    const std::int64_t index_head =
        static_cast<std::int64_t>(r.head) * sparse.index_heads / c.problem.q_heads;
    const std::int32_t* list = sparse.index + (r.row * sparse.index_heads + index_head) * sparse.k;
    run = attend_row(
        c, r, sparse.k, [list](std::int64_t i) { return static_cast<std::int64_t>(list[i]); }, chunk, sums);
  }
  const double sink = c.args.sink != nullptr && run.total > 0
                          ? exp(static_cast<double>(c.args.sink[r.head]) - run.largest)
                          : 0;
  const std::int64_t out = r.row * c.args.out_row_stride + r.head * c.args.out_head_stride;
  for (std::int64_t d = thread; d < c.problem.v_dim; d += kChunk)
    store_value(c.problem.q_type, c.args.out, out + d, run.total != 0 ? sums[d] / (run.total + sink) : 0.0);
  if (thread == 0 && c.args.lse != nullptr)
    c.args.lse[r.row * c.problem.q_heads + r.head] =
        run.total != 0 ? static_cast<float>(run.largest + log(run.total)) : -INFINITY;
}

class ReferenceAttention final : public Attention {
 public:
  explicit ReferenceAttention(const Problem& problem) : problem_(problem) {}
  std::int64_t workspace_bytes(const Limits&) const override { return 0; }
  void plan(const StepShape&, PlanBuffer, platform::Stream&) override {}
  void run(const StepShape& shape, const Args& args, PlanBuffer, platform::Stream& stream) override {
    if (shape.total_q == 0) return;
    const dim3 grid(static_cast<unsigned>(shape.total_q), static_cast<unsigned>(problem_.q_heads));
    const auto bytes = static_cast<std::size_t>(problem_.v_dim) * sizeof(double);
    reference<<<grid, kChunk, bytes, platform::cuda::native(stream)>>>({problem_, shape, args});
    QUIRE_CUDA_CHECK(cudaGetLastError());
  }

 private:
  const Problem problem_;
};

}  // namespace

Make make_reference() {
  return [](const Problem& problem, platform::Device&) -> std::unique_ptr<Attention> {
    return std::make_unique<ReferenceAttention>(problem);
  };
}

}  // namespace quire::attention::cuda
