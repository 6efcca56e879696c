// linear and head_linear: few rows go to gemv, many to cuBLASLt, what neither takes to a plain kernel. Many
// rows by fp8 weights: rounded to fp8 themselves where the call allows it and cuBLASLt has the product, else
// the weights are widened to bf16.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemv.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr std::int64_t kMostBias = std::int64_t{1} << 20;  // outputs of a weight with a bias

// ---- the plain kernel: any format by any activation, a warp per output and four rows ----

constexpr int kPlainRows = 4;

__global__ void __launch_bounds__(256) plain_kernel(Rows x, std::int64_t x_rows, Rows w, std::int64_t outputs,
                                                    const float* row_scale, const float* bias, Rows y) {
  begin_kernel();
  const std::int64_t out = std::int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (out >= outputs) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t first = std::int64_t{blockIdx.y} * kPlainRows;
  const char* weight = head_at(w, out, 0);
  float sum[kPlainRows] = {};
  for (std::int64_t i = lane * 8; i < x.n; i += 256) {
    float a[8];
    load8(weight, w.type, w.vector, i, x.n, a);
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      if (first + r >= x_rows) break;
      float b[8];
      load8(head_at(x, first + r, 0), x.type, x.vector, i, x.n, b);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[r] += a[j] * b[j];
    }
  }
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
    if (first + r >= x_rows) break;
    float total = warp_sum(sum[r]);
    if (row_scale) total *= row_scale[out];
    if (bias) total += bias[out];
    if (lane == 0) store_one(head_at(y, first + r, 0), y.type, out, total);
  }
}

void plain(const TensorView& x, const LinearTarget& target, platform::Stream& stream) {
  const dim3 grid(blocks_for(target.weight.rows, 8), blocks_for(x.rows(), kPlainRows));
  launch(stream, plain_kernel, grid, dim3(256), 0, 1, rows_of(x), x.rows(), rows_of(matrix_of(target.weight)),
         target.weight.rows, target.weight.row_scale, target.bias, rows_of(target.y));
}

// Whether the scales or biases of `rows` rows at `first` go on at `next`; or there are none of either.
bool continues(const float* first, std::int64_t rows, const float* next) {
  return first == nullptr ? next == nullptr : first + rows == next;
}

// Whether `next` lies right behind `first`, so that one product serves both.
bool adjoins(const LinearTarget& first, const LinearTarget& next) {
  const WeightView& a = first.weight;
  const auto y_bytes = static_cast<std::int64_t>(dtype_bytes(first.y.dtype));
  return a.format == next.weight.format && a.row_bytes == next.weight.row_bytes &&
         continues(a.row_scale, a.rows, next.weight.row_scale) && continues(first.bias, a.rows, next.bias) &&
         first.y.dtype == next.y.dtype && first.y.stride[0] == next.y.stride[0] &&
         static_cast<const char*>(a.data) + a.rows * a.row_bytes == next.weight.data &&
         static_cast<char*>(first.y.data) + a.rows * y_bytes == next.y.data;
}

// Elements of the largest converted input.
std::int64_t most_operands(const OpsLimits& limits) {
  return std::max(limits.max_rows, limits.max_logit_rows) * std::max(limits.max_cols, limits.max_hidden);
}

void check_linear(const Linear& args) {
  QUIRE_CHECK(is_matrix(args.x) && args.target_count >= 1 && args.target_count <= kMaxTargets,
              "targets={} x rank {}", args.target_count, args.x.rank);
  for (int t = 0; t < args.target_count; ++t) {
    const LinearTarget& target = args.targets[t];
    QUIRE_CHECK(is_matrix(target.y) && target.weight.cols == args.x.cols() &&
                    target.y.cols() == target.weight.rows && target.y.rows() == args.x.rows() &&
                    target.weight.data != nullptr,
                "x {} x {}, weight {} x {}, y {} x {}", args.x.rows(), args.x.cols(), target.weight.rows,
                target.weight.cols, target.y.rows(), target.y.cols());
  }
}

BlasProduct product_of(const TensorView& x, const LinearTarget& target) {
  BlasProduct p;
  p.x = x.data;
  p.w = target.weight.data;
  p.y = target.y.data;
  p.type = x.dtype;
  p.y_type = target.y.dtype;
  p.rows = x.rows();
  p.in = target.weight.cols;
  p.out = target.weight.rows;
  p.x_stride = x.stride[0];
  p.w_stride = target.weight.row_bytes / static_cast<std::int64_t>(dtype_bytes(x.dtype));
  p.y_stride = target.y.stride[0];
  return p;
}

}  // namespace

std::span<const LinearFormat> CudaOps::linear_formats() const {
  static constexpr LinearFormat kFormats[] = {
      {WeightFormat::bf16, "own / cuBLASLt", "bf16", Determinism::run_to_run},
      {WeightFormat::f16, "own / cuBLASLt", "f16", Determinism::run_to_run},
      {WeightFormat::fp8_e4m3, "own / cuBLASLt", "bf16", Determinism::run_to_run,
       "e4m3 per row, where there are over 16 and cuBLASLt has the product"},
      {WeightFormat::f32, "own / cuBLASLt", "f32", Determinism::run_to_run},
  };
  return kFormats;
}

std::int64_t linear_workspace_bytes(const OpsLimits& limits) {
  Carver sizes(nullptr);
  sizes.take<float>(most_operands(limits));
  sizes.take<float>(kMostBias);
  sizes.take<char>(kPanelBytes);
  sizes.take<float>(kGemvRows);
  return sizes.used();
}

// An input that is converted to bf16 takes half of its place: a rounded one and its scales lie behind it, or
// one in f16.
CudaOps::LinearScratch CudaOps::linear_scratch(const Linear& args) const {
  const std::int64_t rows = args.x.rows(), elements = rows * args.x.cols();
  QUIRE_CHECK(elements <= most_operands(workspace_.limits()), "{} rows of {} columns are over the limits",
              rows, args.x.cols());
  Carver carver(workspace_.scratch());
  LinearScratch scratch;
  auto* place = carver.take<char>(elements * 4);
  scratch.x = place;
  scratch.bias = carver.take<float>(kMostBias);
  scratch.panel = carver.take<char>(kPanelBytes);
  scratch.half = {place + elements * 2, carver.take<float>(kGemvRows), DType::f16};
  const bool rounds = args.x_rounding == RowRounding::e4m3 && rows > kGemvRows &&
                      args.targets[0].weight.format == WeightFormat::fp8_e4m3 && args.x.cols() % 16 == 0;
  const std::int64_t values = (elements * 2 + 255) / 256 * 256;
  const std::int64_t scales = (values + elements + 255) / 256 * 256;
  if (rounds && scales + rows * 4 <= elements * 4)
    scratch.rounded = {place + values, reinterpret_cast<float*>(place + scales)};
  return scratch;
}

// One target, x rounded to e4m3 (once for all targets of a call). False, and nothing done, where cuBLASLt has
// no such product.
bool CudaOps::multiply_rounded(const TensorView& x, const LinearTarget& target, LinearScratch& scratch,
                               platform::Stream& stream) {
  const RoundedRows& rounded = scratch.rounded;
  if (rounded.values == nullptr || target.weight.row_scale == nullptr) return false;
  BlasProduct p = product_of(TensorView::matrix(rounded.values, DType::fp8_e4m3, x.rows(), x.cols()), target);
  p.x_scale = rounded.scales;
  p.w_scale = target.weight.row_scale;
  if (target.bias != nullptr) p.bias = target.y.dtype == DType::f32 ? target.bias : scratch.bias;
  const bool bias_inside = p.bias != nullptr && blas_.finds(p, kBlasBytes);
  if (!bias_inside) {
    p.bias = nullptr;
    if (!blas_.finds(p, kBlasBytes)) return false;
  }
  if (!scratch.is_rounded) round_rows(x, rounded, stream);
  scratch.is_rounded = true;
  if (bias_inside) bias_of(target, scratch.bias, stream);
  const bool done = blas_.multiply(p, workspace_.blas(), kBlasBytes, stream);
  QUIRE_CHECK(done, "{} x {} x {} was found and is not done", p.rows, p.out, p.in);
  if (target.bias != nullptr && !bias_inside) add_bias(target.y, target.bias, stream);
  return true;
}

// One target and many rows; x is of the product's type.
void CudaOps::multiply_many(const TensorView& x, const LinearTarget& target, void* bias_place, char* panel,
                            platform::Stream& stream) {
  if (target.weight.format == WeightFormat::fp8_e4m3) {
    // Times their scales and rounded to bf16 on the way, a panel at a time: cheap beside a product of many
    // rows.
    const std::int64_t at_once = std::max<std::int64_t>(8, kPanelBytes / (target.weight.cols * 2) / 8 * 8);
    for (std::int64_t row = 0; row < target.weight.rows; row += at_once) {
      WeightView part = target.weight;
      part.data = static_cast<const char*>(part.data) + row * part.row_bytes;
      part.rows = std::min(at_once, target.weight.rows - row);
      expand(part, part.row_scale ? part.row_scale + row : nullptr, panel, stream);
      const WeightView widened{panel, WeightFormat::bf16, part.rows, part.cols, part.cols * 2};
      multiply_many(x,
                    {widened, target.bias ? target.bias + row : nullptr, target.y.cols_slice(row, part.rows)},
                    bias_place, panel, stream);
    }
    return;
  }
  BlasProduct p = product_of(x, target);
  if (target.bias != nullptr) p.bias = bias_of(target, bias_place, stream);
  if (blas_.takes(p)) {
    if (blas_.multiply(p, workspace_.blas(), kBlasBytes, stream)) return;
    p.bias = nullptr;
    if (target.bias != nullptr && blas_.multiply(p, workspace_.blas(), kBlasBytes, stream))
      return add_bias(target.y, target.bias, stream);
  }
  plain(x, target, stream);
}

// The bias in the type of the output, which is what cuBLASLt adds.
const void* CudaOps::bias_of(const LinearTarget& target, void* place, platform::Stream& stream) {
  if (target.y.dtype == DType::f32) return target.bias;
  const std::int64_t count = target.weight.rows;
  QUIRE_CHECK(count <= kMostBias, "a bias of {}", count);
  copy({TensorView::matrix(const_cast<float*>(target.bias), DType::f32, 1, count),
        TensorView::matrix(place, target.y.dtype, 1, count)},
       stream);
  return place;
}

// x as the product of this format wants it: x itself, or converted into `place`.
TensorView CudaOps::operand(const TensorView& x, DType type, void* place, platform::Stream& stream) {
  if (x.dtype == type) return x;
  const TensorView converted = TensorView::matrix(place, type, x.rows(), x.cols());
  copy({x, converted}, stream);
  return converted;
}

void CudaOps::linear(const Linear& args, platform::Stream& stream) {
  check_linear(args);
  if (args.x.rows() == 0) return;
  const WeightFormat format = args.targets[0].weight.format;
  bool one_format = true;
  for (int t = 1; t < args.target_count; ++t)
    one_format = one_format && args.targets[t].weight.format == format;
  if (!one_format) {
    for (int t = 0; t < args.target_count; ++t) {
      Linear one = args;
      one.targets[0] = args.targets[t];
      one.target_count = 1;
      linear(one, stream);
    }
    return;
  }
  LinearScratch scratch = linear_scratch(args);
  // A few rows of float32 weights (a router, say): reading them is all there is to do.
  if (format == WeightFormat::f32 && args.x.rows() <= kGemvRows) {
    for (int t = 0; t < args.target_count; ++t) plain(args.x, args.targets[t], stream);
    return;
  }
  TensorView x;  // as a product that does not round it wants it
  if (args.x.rows() <= kGemvRows) {
    Linear few = args;
    few.x = x = operand(args.x, operand_type(format), scratch.x, stream);
    if (arch_ >= 90 && gemv_takes(few))
      return gemv(few, {workspace_.counters(), scratch.half}, multiprocessors_, stream);
  }
  for (int t = 0; t < args.target_count; ++t) {
    LinearTarget merged = args.targets[t];
    while (t + 1 < args.target_count && adjoins(merged, args.targets[t + 1])) {
      merged.weight.rows += args.targets[++t].weight.rows;
      merged.y.shape[1] = merged.weight.rows;
    }
    if (multiply_rounded(args.x, merged, scratch, stream)) continue;
    if (x.data == nullptr) x = operand(args.x, operand_type(format), scratch.x, stream);
    multiply_many(x, merged, scratch.bias, scratch.panel, stream);
  }
}

void CudaOps::head_linear(const HeadLinear& args, platform::Stream& stream) {
  const std::int64_t heads = args.weight.experts;
  QUIRE_CHECK(is_heads(args.x) && is_heads(args.y) && args.x.shape[1] == heads && args.y.shape[1] == heads &&
                  args.x.shape[2] == args.weight.cols && args.y.shape[2] == args.weight.rows &&
                  args.x.rows() == args.y.rows(),
              "x {} heads of {}, weight {} of {} x {}, y {} heads of {}", args.x.shape[1], args.x.shape[2],
              heads, args.weight.rows, args.weight.cols, args.y.shape[1], args.y.shape[2]);
  if (args.x.rows() == 0) return;
  const auto head_of = [](const TensorView& view, std::int64_t head) {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(view.dtype));
    return TensorView::matrix(static_cast<char*>(view.data) + head * view.stride[1] * bytes, view.dtype,
                              view.rows(), view.shape[2], view.stride[0]);
  };
  if (args.x.dtype == operand_type(args.weight.format) && args.weight.format != WeightFormat::fp8_e4m3) {
    BlasProduct p = product_of(head_of(args.x, 0), {args.weight.expert(0), nullptr, head_of(args.y, 0)});
    p.batch = heads;
    p.x_batch_stride = args.x.stride[1];
    p.w_batch_stride = args.weight.expert_bytes / static_cast<std::int64_t>(dtype_bytes(p.type));
    p.y_batch_stride = args.y.stride[1];
    if (blas_.takes(p) && blas_.multiply(p, workspace_.blas(), kBlasBytes, stream)) return;
  }
  for (std::int64_t h = 0; h < heads; ++h)
    plain(head_of(args.x, h), {args.weight.expert(h), nullptr, head_of(args.y, h)}, stream);
}

}  // namespace quire::ops::cuda
