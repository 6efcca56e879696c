// linear and head_linear: the input is rounded once, then all blocks of all weights are shared out.
#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/weight_blocks.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

struct LinearTask {
  Linear args;
  const ProductTable* products;
  const Workspace* workspace;
};

// Where the rounded rows are, for one activation format.
struct Rounded {
  const char* data = nullptr;
  std::int64_t stride = 0;
};

Rounded round_rows(const LinearTask& task, ActivationFormat format, char* out, Team& team) {
  const TensorView& x = task.args.x;
  if (format == ActivationFormat::f32) return {static_cast<const char*>(x.data), x.stride[0] * 4};
  const std::int64_t bytes = activation_row_bytes(format, x.cols());
  for_rows(team, x.rows(), x.cols(), [&](std::int64_t row, int) {
    task.products->round_row(format, row_of(x, row), out + row * bytes, x.cols());
  });
  return {out, bytes};
}

void run_linear(const LinearTask& task, Team& team) {
  const Linear& a = task.args;
  const std::int64_t rows = a.x.rows();
  const Product* product[kMaxTargets];
  Rounded rounded[kMaxTargets];
  BlockPlan plan[kMaxTargets];
  char* free_bytes = task.workspace->scratch();
  std::int64_t items = 0;
  for (int t = 0; t < a.target_count; ++t) {
    product[t] = task.products->find(a.targets[t].weight.format);
    plan[t] = BlockPlan(a.targets[t].weight, rows);
    items += plan[t].items();
    int same = 0;
    while (product[same]->activation != product[t]->activation) ++same;
    if (same < t) {
      rounded[t] = rounded[same];
      continue;
    }
    rounded[t] = round_rows(task, product[t]->activation, free_bytes, team);
    if (product[t]->activation != ActivationFormat::f32) free_bytes += align64(rows * rounded[t].stride);
  }
  team.for_each(items, [&](std::int64_t item, int thread) {
    int t = 0;
    while (item >= plan[t].items()) item -= plan[t++].items();
    const LinearTarget& target = a.targets[t];
    const BlockPlan::Block block = plan[t].block(item);
    float* y = row_of(target.y, block.row) + block.out;
    multiply_block(*task.products, *product[t], target.weight, target.bias, block,
                   rounded[t].data + block.row * rounded[t].stride, rounded[t].stride, y, target.y.stride[0],
                   task.workspace->panel(thread));
  });
}

struct HeadLinearTask {
  HeadLinear args;
  const ProductTable* products;
  const Workspace* workspace;
};

void run_head_linear(const HeadLinearTask& task, Team& team) {
  const HeadLinear& a = task.args;
  const std::int64_t rows = a.x.rows(), heads = a.x.shape[1], in = a.x.shape[2];
  const Product& product = *task.products->find(a.weight.format);
  const bool direct = product.activation == ActivationFormat::f32;
  const std::int64_t bytes = direct ? 0 : activation_row_bytes(product.activation, in);
  if (!direct) {
    for_rows(team, rows * heads, in, [&](std::int64_t at, int) {
      task.products->round_row(product.activation, head_of(a.x, at / heads, at % heads),
                               task.workspace->scratch() + at * bytes, in);
    });
  }
  const WeightView first = a.weight.expert(0);
  const BlockPlan plan(first, rows);
  team.for_each(plan.items() * heads, [&](std::int64_t item, int thread) {
    const std::int64_t head = item / plan.items();
    const BlockPlan::Block block = plan.block(item % plan.items());
    const char* x = direct ? reinterpret_cast<const char*>(head_of(a.x, block.row, head))
                           : task.workspace->scratch() + (block.row * heads + head) * bytes;
    multiply_block(*task.products, product, a.weight.expert(head), nullptr, block, x,
                   direct ? a.x.stride[0] * 4 : heads * bytes, head_of(a.y, block.row, head) + block.out,
                   a.y.stride[0], task.workspace->panel(thread));
  });
}

}  // namespace

void multiply_block(const ProductTable& products, const Product& product, const WeightView& weight,
                    const float* bias, const BlockPlan::Block& block, const char* activation,
                    std::int64_t activation_stride, float* y, std::int64_t y_stride, float* panel) {
  products.multiply(product, static_cast<const char*>(weight.data) + block.out * weight.row_bytes,
                    weight.row_bytes, block.outs, weight.cols, activation, activation_stride, block.rows, y,
                    y_stride, panel);
  for (std::int64_t j = 0; j < block.rows; ++j) {
    float* row = y + j * y_stride;
    if (weight.row_scale) {
      for (std::int64_t i = 0; i < block.outs; ++i) row[i] *= weight.row_scale[block.out + i];
    }
    if (bias) {
      for (std::int64_t i = 0; i < block.outs; ++i) row[i] += bias[block.out + i];
    }
  }
}

const Product& checked_product(const ProductTable& products, const WeightView& weight) {
  const Product* product = products.find(weight.format);
  QUIRE_CHECK(product != nullptr, "no product for weights of format {}",
              weight_format_info(weight.format).name);
  QUIRE_CHECK(weight.data != nullptr && weight.row_bytes == weight_row_bytes(weight.format, weight.cols),
              "weight of {} x {}: row bytes {}", weight.rows, weight.cols, weight.row_bytes);
  return *product;
}

void CpuOps::linear(const Linear& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x) && args.target_count >= 1 && args.target_count <= kMaxTargets,
              "targets={} x rank {}", args.target_count, args.x.rank);
  std::int64_t bytes = 0;
  unsigned seen = 0;
  for (int t = 0; t < args.target_count; ++t) {
    const LinearTarget& target = args.targets[t];
    const Product& product = checked_product(products_, target.weight);
    QUIRE_CHECK(is_matrix(target.y) && target.weight.cols == args.x.cols() &&
                    target.y.cols() == target.weight.rows && target.y.rows() == args.x.rows(),
                "x {} x {}, weight {} x {}, y {} x {}", args.x.rows(), args.x.cols(), target.weight.rows,
                target.weight.cols, target.y.rows(), target.y.cols());
    const unsigned bit = 1u << static_cast<unsigned>(product.activation);
    if (product.activation == ActivationFormat::f32 || (seen & bit)) continue;
    seen |= bit;
    bytes += align64(args.x.rows() * activation_row_bytes(product.activation, args.x.cols()));
  }
  QUIRE_CHECK(bytes <= workspace_.scratch_bytes(), "{} rows of {} need {} bytes of {}", args.x.rows(),
              args.x.cols(), bytes, workspace_.scratch_bytes());
  if (args.x.rows() == 0) return;
  const LinearTask task{args, &products_, &workspace_};
  platform::cpu::as_cpu(stream).enqueue([task](Team& team) { run_linear(task, team); });
}

void CpuOps::head_linear(const HeadLinear& args, platform::Stream& stream) {
  const Product& product = checked_product(products_, args.weight);
  QUIRE_CHECK(is_heads(args.x) && is_heads(args.y) && args.x.shape[1] == args.weight.experts &&
                  args.y.shape[1] == args.weight.experts && args.x.shape[2] == args.weight.cols &&
                  args.y.shape[2] == args.weight.rows && args.x.rows() == args.y.rows(),
              "x {} heads of {}, weight {} of {} x {}, y {} heads of {}", args.x.shape[1], args.x.shape[2],
              args.weight.experts, args.weight.rows, args.weight.cols, args.y.shape[1], args.y.shape[2]);
  if (product.activation != ActivationFormat::f32) {
    const std::int64_t bytes =
        args.x.rows() * args.x.shape[1] * activation_row_bytes(product.activation, args.weight.cols);
    QUIRE_CHECK(bytes <= workspace_.scratch_bytes(), "{} bytes of {}", bytes, workspace_.scratch_bytes());
  }
  if (args.x.rows() == 0) return;
  const HeadLinearTask task{args, &products_, &workspace_};
  platform::cpu::as_cpu(stream).enqueue([task](Team& team) { run_head_linear(task, team); });
}

}  // namespace quire::ops::cpu
