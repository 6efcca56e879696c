// quire_ops_bench fp8: products of e4m3 weights beside those of bf16, and what rounding activations takes.
#include <fmt/core.h>

#include <limits>

#include "ops/cuda/bench/bench.h"
#include "ops/cuda/blas.h"
#include "ops/cuda/round_rows.h"

namespace quire::ops::cuda {
namespace {

// Microseconds of one of the `copies` products of `rows` rows that all() does.
template <class All>
double time_each(Bench& b, std::size_t copies, std::int64_t rows, All&& all) {
  const int count = static_cast<int>(copies), passes = rows > 256 ? 1 : std::max(1, 40 / count);
  return b.time(passes, rows > 256 ? 5 : 9, all) / count;
}

// Microseconds of y = x W^T over copies of the weight that no pass finds in the L2 cache.
double time_product(Bench& b, const std::vector<WeightView>& copies, const TensorView& x, const TensorView& y,
                    RowRounding rounding) {
  Linear call;
  call.x = x;
  call.x_rounding = rounding;
  call.target_count = 1;
  return time_each(b, copies.size(), x.rows(), [&] {
    for (const WeightView& weight : copies) {
      call.targets[0] = {weight, nullptr, y};
      b.ops->linear(call, *b.stream);
    }
  });
}

// The product alone, of rows that are rounded already; not a number where cuBLASLt has none.
double time_rounded(Bench& b, Blas& blas, const std::vector<WeightView>& copies, const TensorView& x,
                    const TensorView& y, bool fast_sums) {
  const RoundedRows rounded{b.memory_of<std::uint8_t>(x.rows() * x.cols()), b.memory_of<float>(x.rows())};
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  auto* workspace = b.memory_of<char>(kBytes);
  round_rows(x, rounded, *b.stream);
  BlasProduct p;
  p.x = rounded.values;
  p.x_scale = rounded.scales;
  p.y = y.data;
  p.type = DType::fp8_e4m3;
  p.rows = x.rows();
  p.in = p.x_stride = p.w_stride = x.cols();
  p.out = p.y_stride = y.cols();
  p.fast_sums = fast_sums;
  const auto all = [&] {
    bool found = true;
    for (const WeightView& weight : copies) {
      p.w = weight.data;
      p.w_scale = weight.row_scale;
      found = found && blas.finds(p, kBytes) && blas.multiply(p, workspace, kBytes, *b.stream);
    }
    return found;
  };
  if (!all()) return std::numeric_limits<double>::quiet_NaN();
  return time_each(b, copies.size(), x.rows(), all);
}

void bench_fp8_products(Bench& b) {
  struct Product {
    const char* name;
    std::int64_t cols, outs;
  };
  Blas blas;
  fmt::print("{:<10} {:>6} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9} {:>9}   (us)\n", "fp8", "rows", "all bf16",
             "by bf16", "by fp8", "ratio", "TFLOP/s", "rounded", "fast sums");
  for (const Product& p : {Product{"q,k,v", kHidden, kQ + 2 * kKv}, Product{"o", kQ, kHidden},
                           Product{"gate,up", kHidden, 2 * kInter}, Product{"down", kInter, kHidden}}) {
    std::vector<WeightView> bf16, fp8;
    for (std::int64_t bytes = 0; bytes < (200 << 20); bytes += p.outs * p.cols) {
      bf16.push_back(b.weight(p.outs, p.cols));
      fp8.push_back(b.fp8_weight(p.outs, p.cols));
    }
    const std::size_t mark = b.kept.size();
    for (std::int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256, 2048, 8192}) {
      if (!b.wanted(rows)) continue;
      const TensorView x = b.activations(rows, p.cols), y = b.activations(rows, p.outs);
      const double wide = time_product(b, bf16, x, y, RowRounding::none),
                   mixed = time_product(b, fp8, x, y, RowRounding::none),
                   narrow = time_product(b, fp8, x, y, RowRounding::e4m3),
                   alone = time_rounded(b, blas, fp8, x, y, false),
                   fast = time_rounded(b, blas, fp8, x, y, true);
      fmt::print("{:<10} {:>6} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.3f} {:>8.0f} {:>9.2f} {:>9.2f}\n", p.name,
                 rows, wide, mixed, narrow, narrow / wide,
                 2.0 * static_cast<double>(rows * p.outs * p.cols) / narrow * 1e-6, alone, fast);
      b.kept.resize(mark);
    }
    b.kept.clear();
  }
}

void bench_rounding(Bench& b) {
  fmt::print("{:<22} {:>6} {:>10} {:>9}\n", "rows rounded to e4m3", "rows", "us", "GB/s");
  for (const std::int64_t cols : {kHidden, kInter}) {
    for (const std::int64_t rows : {64, 8192}) {
      if (!b.wanted(rows)) continue;
      const TensorView x = b.activations(rows, cols);
      const RoundedRows to{b.memory_of<std::uint8_t>(rows * cols), b.memory_of<float>(rows)};
      const double us = b.time(rows > 256 ? 4 : 40, 9, [&] { round_rows(x, to, *b.stream); });
      fmt::print("{:<22} {:>6} {:>10.2f} {:>9.0f}\n", fmt::format("of {} bf16", cols), rows, us,
                 3.0 * static_cast<double>(rows * cols) / us * 1e-3);
      b.kept.clear();
    }
  }
}

}  // namespace

void bench_fp8(Bench& bench) {
  bench_fp8_products(bench);
  bench_rounding(bench);
}

}  // namespace quire::ops::cuda
