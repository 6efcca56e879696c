// Norms, activations, rope angles, soft caps, and what only moves rows.
#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

// ---- rms_norm: one block per row (or per head) ----

constexpr int kNormKeep = 4;  // most vectors of eight that a thread keeps between the two passes
constexpr int kNormThreads = 1024;
constexpr int kShortNormThreads = 512;  // of rows with one vector a thread

struct NormArgs {
  Rows x, add, y;
  const float* weight;
  float eps;
};

template <int kKeep, int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(NormArgs a) {
  __shared__ float shared[32];
  const std::int64_t item = blockIdx.x;
  const std::int64_t n = a.x.n;
  const std::int64_t step = blockDim.x * 8;
  // Weights never change: where registers allow, they are read before what came earlier is complete.
  constexpr bool kAhead = kKeep == 1;
  const char* weights = reinterpret_cast<const char*>(a.weight);
  float weight[8];
  let_next_start();
  if (kAhead && a.y.data) load8(weights, DType::f32, a.y.vector, threadIdx.x * 8, n, weight);
  wait_for_earlier();
  char* x = item_at(a.x, item);
  const char* add = a.add.data ? item_at(a.add, item) : nullptr;
  float keep[kKeep][8];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    const std::int64_t i = k * step + threadIdx.x * 8;
    if (i >= n) break;
    load8(x, a.x.type, a.x.vector, i, n, keep[k]);
    if (add) {
      float more[8];
      load8(add, a.add.type, a.add.vector, i, n, more);
#pragma unroll
      for (int j = 0; j < 8; ++j) keep[k][j] = rounded(a.x.type, keep[k][j] + more[j]);
      store8(x, a.x.type, a.x.vector, i, n, keep[k]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += keep[k][j] * keep[k][j];
  }
  if (!a.y.data) return;
  const float mean = block_sum(squares, shared) / static_cast<float>(n);
  const float factor = 1.0f / sqrtf(mean + a.eps);
  char* y = item_at(a.y, item);
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    const std::int64_t i = k * step + threadIdx.x * 8;
    if (i >= n) break;
    if (!kAhead) load8(weights, DType::f32, a.y.vector, i, n, weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) keep[k][j] = keep[k][j] * factor * weight[j];
    store8(y, a.y.type, a.y.vector, i, n, keep[k]);
  }
}

// ---- eight elements a thread ----

__global__ void __launch_bounds__(256)
    gated_kernel(Activation kind, float limit, Rows gate, Rows up, Rows y) {
  begin_kernel();
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
  if (i >= gate.n) return;
  float g[8], u[8];
  load8(item_at(gate, blockIdx.x), gate.type, gate.vector, i, gate.n, g);
  load8(item_at(up, blockIdx.x), up.type, up.vector, i, up.n, u);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = activate(kind, limit, g[j], u[j]);
  store8(item_at(y, blockIdx.x), y.type, y.vector, i, y.n, g);
}

__global__ void __launch_bounds__(256) softcap_kernel(Rows x, float scale, float cap) {
  begin_kernel();
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
  if (i >= x.n) return;
  char* row = item_at(x, blockIdx.x);
  float v[8];
  load8(row, x.type, x.vector, i, x.n, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = cap == 0.0f ? v[j] * scale : cap * tanhf(scale * v[j] / cap);
  store8(row, x.type, x.vector, i, x.n, v);
}

// y[item] = x[index[item]] * scale, types converted. `row_scale`: one factor per row of x (fp8 tables).
__global__ void __launch_bounds__(256) copy_kernel(Rows x, Rows y, const std::int32_t* index,
                                                   std::int64_t x_rows, float scale, const float* row_scale) {
  begin_kernel();
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
  if (i >= y.n) return;
  std::int64_t from = blockIdx.x;
  if (index) {
    from = index[blockIdx.x];
    if (from < 0 || from >= x_rows) __trap();  // a bug of the caller: the host cannot see it
  }
  const float factor = row_scale ? scale * row_scale[from] : scale;
  float v[8];
  load8(item_at(x, from), x.type, x.vector, i, y.n, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] *= factor;
  store8(item_at(y, blockIdx.x), y.type, y.vector, i, y.n, v);
}

__global__ void __launch_bounds__(256) add_bias_kernel(Rows y, const float* bias) {
  begin_kernel();
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 8;
  if (i >= y.n) return;
  char* row = item_at(y, blockIdx.x);
  float v[8], b[8];
  load8(row, y.type, y.vector, i, y.n, v);
  load8(reinterpret_cast<const char*>(bias), DType::f32, false, i, y.n, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] += b[j];
  store8(row, y.type, y.vector, i, y.n, v);
}

__global__ void __launch_bounds__(128) rope_angles_kernel(RopeAngles a) {
  begin_kernel();
  const int half = a.rotary_dim / 2;
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= a.rows * half) return;
  const std::int64_t row = at / half;
  const int i = static_cast<int>(at % half);
  const float angle = static_cast<float>(a.positions[row]) * a.inv_freq[i];
  float sine, cosine;
  sincosf(angle, &sine, &cosine);
  float* out = a.cos_sin + row * a.rotary_dim;
  out[i] = cosine * a.attention_factor;
  out[half + i] = sine * a.attention_factor;
}

// Threads of a block for rows of n elements, eight each.
unsigned threads_for(std::int64_t n, unsigned most) {
  const auto wanted = static_cast<unsigned>((n / 8 + 31) / 32 * 32);
  return std::clamp(wanted, 32u, most);
}

dim3 grid_for(std::int64_t rows, std::int64_t n, unsigned threads) {
  return dim3(static_cast<unsigned>(rows), blocks_for(n, std::int64_t{threads} * 8));
}

}  // namespace

void CudaOps::rms_norm(const RmsNorm& args, platform::Stream& stream) {
  QUIRE_CHECK(is_rows(args.x), "x rank {} dtype {}", args.x.rank, to_string(args.x.dtype));
  QUIRE_CHECK(!args.add.data || (is_rows(args.add) && same_shape(args.add, args.x)), "add rows {} cols {}",
              args.add.rows(), args.add.cols());
  QUIRE_CHECK(!args.y.data || (is_rows(args.y) && same_shape(args.y, args.x) && args.weight),
              "y rows {} cols {}", args.y.rows(), args.y.cols());
  NormArgs a;
  a.x = rows_of(args.x);
  if (args.add.data) a.add = rows_of(args.add);
  if (args.y.data) {
    a.y = rows_of(args.y);
    a.y.vector = a.y.vector && reinterpret_cast<std::uintptr_t>(args.weight) % 16 == 0;
  }
  a.weight = args.weight;
  a.eps = args.eps;
  QUIRE_CHECK(a.x.n <= kNormThreads * kNormKeep * 8, "a norm over {} columns", a.x.n);
  // Up to 512 threads a vector each, then several: more threads would make the sum's barriers wider only.
  const unsigned threads =
      threads_for(a.x.n, a.x.n > kShortNormThreads * kNormKeep * 8 ? kNormThreads : kShortNormThreads);
  const auto kernel = a.x.n <= kShortNormThreads * 8 ? rms_norm_kernel<1, kShortNormThreads>
                                                     : rms_norm_kernel<kNormKeep, kNormThreads>;
  launch(stream, kernel, dim3(static_cast<unsigned>(items_of(args.x))), dim3(threads), 0, 1, a);
}

void CudaOps::gated_activation(const GatedActivation& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.gate) && is_matrix(args.up) && is_matrix(args.y) &&
                  same_shape(args.gate, args.up) && same_shape(args.gate, args.y),
              "gate {} x {}, up {} x {}", args.gate.rows(), args.gate.cols(), args.up.rows(), args.up.cols());
  const unsigned threads = threads_for(args.gate.cols(), 256);
  launch(stream, gated_kernel, grid_for(args.gate.rows(), args.gate.cols(), threads), dim3(threads), 0, 1,
         args.kind, args.limit, rows_of(args.gate), rows_of(args.up), rows_of(args.y));
}

void CudaOps::softcap_scale(const SoftcapScale& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x), "x rank {} dtype {}", args.x.rank, to_string(args.x.dtype));
  const unsigned threads = threads_for(args.x.cols(), 256);
  launch(stream, softcap_kernel, grid_for(args.x.rows(), args.x.cols(), threads), dim3(threads), 0, 1,
         rows_of(args.x), args.scale, args.cap);
}

void CudaOps::rope_angles(const RopeAngles& args, platform::Stream& stream) {
  QUIRE_CHECK(args.rotary_dim > 0 && args.rotary_dim % 2 == 0, "rotary_dim={}", args.rotary_dim);
  launch(stream, rope_angles_kernel, dim3(blocks_for(args.rows * (args.rotary_dim / 2), 128)), dim3(128), 0,
         1, args);
}

void CudaOps::add_bias(const TensorView& y, const float* bias, platform::Stream& stream) {
  const unsigned threads = threads_for(y.cols(), 256);
  launch(stream, add_bias_kernel, grid_for(y.rows(), y.cols(), threads), dim3(threads), 0, 1, rows_of(y),
         bias);
}

void CudaOps::expand(const WeightView& weight, const float* row_scale, void* target,
                     platform::Stream& stream) {
  const TensorView to = TensorView::matrix(target, DType::bf16, weight.rows, weight.cols);
  const unsigned threads = threads_for(weight.cols, 256);
  launch(stream, copy_kernel, grid_for(weight.rows, weight.cols, threads), dim3(threads), 0, 1,
         rows_of(matrix_of(weight)), rows_of(to), nullptr, std::int64_t{0}, 1.0f, row_scale);
}

void CudaOps::embed(const Embed& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.y) && args.y.cols() == args.table.cols, "embed of {} columns from a table of {}",
              args.y.cols(), args.table.cols);
  const unsigned threads = threads_for(args.y.cols(), 256);
  launch(stream, copy_kernel, grid_for(args.y.rows(), args.y.cols(), threads), dim3(threads), 0, 1,
         rows_of(matrix_of(args.table)), rows_of(args.y), args.tokens, args.table.rows, args.scale,
         args.table.row_scale);
}

void CudaOps::gather_rows(const GatherRows& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x) && is_matrix(args.y) && args.x.cols() == args.y.cols(), "x cols {} y cols {}",
              args.x.cols(), args.y.cols());
  const unsigned threads = threads_for(args.y.cols(), 256);
  launch(stream, copy_kernel, grid_for(args.y.rows(), args.y.cols(), threads), dim3(threads), 0, 1,
         rows_of(args.x), rows_of(args.y), args.index, args.x.rows(), 1.0f, nullptr);
}

void CudaOps::copy(const Copy& args, platform::Stream& stream) {
  QUIRE_CHECK(is_rows(args.x) && is_rows(args.y) && same_shape(args.x, args.y),
              "x rank {} {} x {}, y rank {} {} x {}", args.x.rank, args.x.rows(), args.x.cols(), args.y.rank,
              args.y.rows(), args.y.cols());
  const std::int64_t n = args.x.shape[args.x.rank - 1];
  const unsigned threads = threads_for(n, 256);
  launch(stream, copy_kernel, grid_for(items_of(args.x), n, threads), dim3(threads), 0, 1, rows_of(args.x),
         rows_of(args.y), nullptr, std::int64_t{0}, 1.0f, nullptr);
}

}  // namespace quire::ops::cuda
