// The router and the experts. Each expert's rows are gathered, so one expert is one product however many
// rows chose it, and a row's result does not depend on who else is there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/parts.h"
#include "ops/cpu/weight_blocks.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

constexpr std::int32_t kMaxExperts = 1024;
constexpr std::int32_t kMaxRouterGroups = 64;

// ---- route ----

// The k largest of score[0..n) by value, ties to the lower id, best first.
void take_top(const float* score, std::int32_t n, std::int32_t k, std::int32_t* chosen) {
  for (std::int32_t i = 0; i < k; ++i) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < n; ++e) {
      if (std::find(chosen, chosen + i, e) != chosen + i) continue;
      if (best < 0 || score[e] > score[best]) best = e;
    }
    chosen[i] = best;
  }
}

// y may be x.
void softmax(const float* x, float* y, std::int32_t n) {
  float largest = x[0];
  for (std::int32_t i = 1; i < n; ++i) largest = std::max(largest, x[i]);
  float sum = 0.0f;
  for (std::int32_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - largest);
  for (std::int32_t i = 0; i < n; ++i) y[i] /= sum;
}

void renormalise(float* weight, std::int32_t k, float epsilon) {
  float sum = epsilon;
  for (std::int32_t i = 0; i < k; ++i) sum += weight[i];
  for (std::int32_t i = 0; i < k; ++i) weight[i] /= sum;
}

// Groups outside the best `top_groups` (by the sum of their best two) cannot be chosen.
void refuse_groups(const RouterSpec& spec, float* score) {
  const std::int32_t size = spec.experts / spec.groups;
  float group_score[kMaxRouterGroups];
  std::int32_t kept[kMaxRouterGroups];
  for (std::int32_t g = 0; g < spec.groups; ++g) {
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (std::int32_t e = g * size; e < (g + 1) * size; ++e) {
      if (score[e] > best) {
        second = best;
        best = score[e];
      } else {
        second = std::max(second, score[e]);
      }
    }
    group_score[g] = size > 1 ? best + second : best;
  }
  take_top(group_score, spec.groups, spec.top_groups, kept);
  for (std::int32_t g = 0; g < spec.groups; ++g) {
    if (std::find(kept, kept + spec.top_groups, g) != kept + spec.top_groups) continue;
    std::fill(score + g * size, score + (g + 1) * size, -std::numeric_limits<float>::infinity());
  }
}

void route_row(const Route& a, std::int64_t row) {
  const RouterSpec& spec = a.spec;
  const float* logits = row_of(a.logits, row);
  std::int32_t* chosen = a.expert + row * spec.top_k;
  float* weight = a.weight + row * spec.top_k;
  float score[kMaxExperts], value[kMaxExperts];
  switch (spec.kind) {
    case RouterKind::softmax_top_k:
      softmax(logits, value, spec.experts);
      take_top(value, spec.experts, spec.top_k, chosen);
      break;
    case RouterKind::top_k_softmax:
      std::copy(logits, logits + spec.experts, value);
      take_top(value, spec.experts, spec.top_k, chosen);
      break;
    case RouterKind::sigmoid_group_top_k:
      for (std::int32_t e = 0; e < spec.experts; ++e) {
        value[e] = 1.0f / (1.0f + std::exp(-logits[e]));
        score[e] = value[e] + (a.correction_bias ? a.correction_bias[e] : 0.0f);
      }
      if (spec.groups > 1) refuse_groups(spec, score);
      take_top(score, spec.experts, spec.top_k, chosen);
      break;
  }
  for (std::int32_t i = 0; i < spec.top_k; ++i) weight[i] = value[chosen[i]];
  if (spec.kind == RouterKind::top_k_softmax) {
    softmax(weight, weight, spec.top_k);
  } else if (spec.renormalise) {
    renormalise(weight, spec.top_k, spec.kind == RouterKind::sigmoid_group_top_k ? 1e-20f : 0.0f);
  }
  for (std::int32_t i = 0; i < spec.top_k; ++i) weight[i] *= spec.scaling;
}

// ---- moe_mlp ----

struct MoeTask {
  MoeMlp args;
  const ProductTable* products;
  const RowMath* math;
  const Workspace* workspace;
};

// The call's memory. `place` p counts (row, k) pairs in the order of experts.
struct MoeScratch {
  std::int32_t* begin;   // [experts + 1] first place of every expert
  std::int32_t* source;  // [places] row * top_k + k
  std::int32_t* place;   // [rows * top_k] its place
  char* x;               // [places] rounded or copied inputs, x_bytes apart
  float* gate;           // [places, inter]
  float* up;
  char* act;   // [places] rounded activations, act_bytes apart; gate itself for f32
  float* out;  // [places, hidden]
  std::int64_t x_bytes, act_bytes;
};

std::int64_t carve(char* base, std::int64_t places, std::int64_t experts, std::int64_t hidden,
                   std::int64_t inter, ActivationFormat in, ActivationFormat mid, MoeScratch* s) {
  Carver carver(base);
  s->x_bytes = activation_row_bytes(in, hidden);
  s->act_bytes = activation_row_bytes(mid, inter);
  s->begin = carver.take<std::int32_t>(experts + 1);
  s->source = carver.take<std::int32_t>(places);
  s->place = carver.take<std::int32_t>(places);
  s->x = carver.take<char>(places * s->x_bytes);
  s->gate = carver.take<float>(places * inter);
  s->up = carver.take<float>(places * inter);
  s->act = mid == ActivationFormat::f32 ? reinterpret_cast<char*>(s->gate)
                                        : carver.take<char>(places * s->act_bytes);
  s->out = carver.take<float>(places * hidden);
  return carver.used();
}

void sort_by_expert(const MoeMlp& a, const MoeScratch& s, std::int64_t places) {
  const std::int64_t experts = a.gate.experts;
  std::fill(s.begin, s.begin + experts + 1, 0);
  for (std::int64_t p = 0; p < places; ++p) {
    QUIRE_CHECK(a.expert[p] >= 0 && a.expert[p] < experts, "expert {} of {}", a.expert[p], experts);
    ++s.begin[a.expert[p] + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) s.begin[e + 1] += s.begin[e];
  for (std::int64_t p = 0; p < places; ++p) {
    const std::int32_t at = s.begin[a.expert[p]]++;
    s.source[at] = static_cast<std::int32_t>(p);
    s.place[p] = at;
  }
  // Placing moved every border to the next one; move them back.
  for (std::int64_t e = experts; e > 0; --e) s.begin[e] = s.begin[e - 1];
  s.begin[0] = 0;
}

struct MoeProduct {
  const WeightView* weight;
  const Product* product;
  const float* bias;
  float* y;
};

// One product of all experts: y[place] = x[place] W_expert^T + b, for up to two weights of the same input.
void multiply_experts(const MoeTask& task, const MoeScratch& s, const char* x, std::int64_t x_bytes,
                      const MoeProduct* products, int count, Team& team) {
  const std::int64_t experts = task.args.gate.experts;
  std::int64_t total = 0;
  std::int64_t first[kMaxExperts + 1];  // first piece of work of every expert, for one weight
  for (std::int64_t e = 0; e < experts; ++e) {
    first[e] = total;
    const std::int64_t rows = s.begin[e + 1] - s.begin[e];
    if (rows > 0) total += BlockPlan(*products[0].weight, rows).items();
  }
  first[experts] = total;
  team.for_each(total * count, [&](std::int64_t item, int thread) {
    const MoeProduct& p = products[item / total];
    const std::int64_t piece = item % total;
    const std::int64_t e = std::upper_bound(first, first + experts + 1, piece) - first - 1;
    const BlockPlan plan(*p.weight, s.begin[e + 1] - s.begin[e]);
    const BlockPlan::Block block = plan.block(piece - first[e]);
    const std::int64_t place = s.begin[e] + block.row;
    const float* bias = p.bias ? p.bias + e * p.weight->rows : nullptr;
    multiply_block(*task.products, *p.product, p.weight->expert(e), bias, block, x + place * x_bytes, x_bytes,
                   p.y + place * p.weight->rows + block.out, p.weight->rows, task.workspace->panel(thread));
  });
}

void activate(const MoeTask& task, const MoeScratch& s, std::int64_t place, ActivationFormat mid) {
  const MoeMlp& a = task.args;
  const std::int64_t inter = a.gate.rows;
  float* gate = s.gate + place * inter;
  const float* up = s.up + place * inter;
  switch (a.kind) {
    case Activation::silu:
      task.math->silu(gate, up, gate, inter);
      break;
    case Activation::gelu_tanh:
      task.math->gelu_tanh(gate, up, gate, inter);
      break;
    case Activation::swiglu_clamp:
      task.math->swiglu_clamp(gate, up, gate, inter, a.limit);
      break;
  }
  if (mid != ActivationFormat::f32) task.products->round_row(mid, gate, s.act + place * s.act_bytes, inter);
}

void combine_row(const MoeTask& task, const MoeScratch& s, std::int64_t row) {
  const MoeMlp& a = task.args;
  float* y = row_of(a.y, row);
  std::fill(y, y + a.y.cols(), 0.0f);
  for (std::int64_t k = 0; k < a.top_k; ++k) {
    const std::int64_t pair = row * a.top_k + k;
    task.math->add_scaled(s.out + s.place[pair] * a.y.cols(), a.weight[pair], y, a.y.cols());
  }
}

void run_moe(const MoeTask& task, Team& team) {
  const MoeMlp& a = task.args;
  const std::int64_t places = a.x.rows() * a.top_k, hidden = a.x.cols(), inter = a.gate.rows;
  const Product* gate = task.products->find(a.gate.format);
  const Product* up = task.products->find(a.up.format);
  const Product* down = task.products->find(a.down.format);
  MoeScratch s;
  carve(task.workspace->scratch(), places, a.gate.experts, hidden, inter, gate->activation, down->activation,
        &s);
  sort_by_expert(a, s, places);
  for_rows(team, places, hidden, [&](std::int64_t place, int) {
    const float* x = row_of(a.x, s.source[place] / a.top_k);
    char* out = s.x + place * s.x_bytes;
    if (gate->activation == ActivationFormat::f32) {
      std::memcpy(out, x, static_cast<std::size_t>(hidden) * sizeof(float));
    } else {
      task.products->round_row(gate->activation, x, out, hidden);
    }
  });
  const MoeProduct first[2] = {{&a.gate, gate, a.gate_bias, s.gate}, {&a.up, up, a.up_bias, s.up}};
  multiply_experts(task, s, s.x, s.x_bytes, first, 2, team);
  for_rows(team, places, inter * 8,
           [&](std::int64_t place, int) { activate(task, s, place, down->activation); });
  const MoeProduct second[1] = {{&a.down, down, a.down_bias, s.out}};
  multiply_experts(task, s, s.act, s.act_bytes, second, 1, team);
  for_rows(team, a.x.rows(), hidden * a.top_k, [&](std::int64_t row, int) { combine_row(task, s, row); });
}

}  // namespace

std::int64_t moe_workspace_bytes(const OpsLimits& limits) {
  if (limits.max_expert_inter == 0) return 0;
  // float32 is the widest activation; a block format's columns are whole blocks already.
  MoeScratch s;
  return carve(nullptr, limits.max_rows * limits.max_top_k, kMaxExperts, limits.max_hidden,
               limits.max_expert_inter, ActivationFormat::f32, ActivationFormat::f32, &s) +
         align64(limits.max_rows * limits.max_top_k * limits.max_expert_inter * 2);
}

void CpuOps::route(const Route& args, platform::Stream& stream) {
  const RouterSpec& spec = args.spec;
  QUIRE_CHECK(
      is_matrix(args.logits) && args.logits.cols() == spec.experts && spec.experts <= kMaxExperts &&
          spec.top_k >= 1 && spec.top_k <= spec.experts && spec.groups >= 1 &&
          spec.groups <= kMaxRouterGroups && spec.experts % spec.groups == 0 && spec.top_groups >= 1 &&
          spec.top_groups <= spec.groups && spec.top_k <= spec.experts / spec.groups * spec.top_groups,
      "experts {} top {} groups {} top groups {}", spec.experts, spec.top_k, spec.groups, spec.top_groups);
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    for_rows(team, args.logits.rows(), std::int64_t{args.spec.experts} * (8 + args.spec.top_k),
             [&](std::int64_t row, int) { route_row(args, row); });
  });
}

void CpuOps::moe_mlp(const MoeMlp& args, platform::Stream& stream) {
  const Product& gate = checked_product(products_, args.gate);
  const Product& up = checked_product(products_, args.up);
  const Product& down = checked_product(products_, args.down);
  QUIRE_CHECK(is_matrix(args.x) && is_matrix(args.y) && args.top_k >= 1 && args.gate.experts <= kMaxExperts &&
                  args.gate.experts == args.up.experts && args.gate.experts == args.down.experts &&
                  args.gate.cols == args.x.cols() && args.up.cols == args.x.cols() &&
                  args.gate.rows == args.up.rows && args.down.cols == args.gate.rows &&
                  args.down.rows == args.y.cols() && args.y.cols() == args.x.cols() &&
                  gate.activation == up.activation,
              "x {} x {}, {} experts of {} x {}, down {} x {}", args.x.rows(), args.x.cols(),
              args.gate.experts, args.gate.rows, args.gate.cols, args.down.rows, args.down.cols);
  if (args.x.rows() == 0) return;
  MoeScratch s;
  const std::int64_t bytes = carve(nullptr, args.x.rows() * args.top_k, args.gate.experts, args.x.cols(),
                                   args.gate.rows, gate.activation, down.activation, &s);
  QUIRE_CHECK(bytes <= workspace_.scratch_bytes(), "{} rows of top {} need {} bytes of {}", args.x.rows(),
              args.top_k, bytes, workspace_.scratch_bytes());
  const MoeTask task{args, &products_, &math_, &workspace_};
  platform::cpu::as_cpu(stream).enqueue([task](Team& team) { run_moe(task, team); });
}

}  // namespace quire::ops::cpu
