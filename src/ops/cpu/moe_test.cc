#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu/testing.h"

namespace quire::ops::cpu {
namespace {

using platform::cpu::Isa;
using testing::levels;
using testing::random_floats;
using testing::random_weight;
using testing::Rig;
using testing::TestWeight;
using testing::view;

std::vector<double> softmax(std::vector<double> x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (double& v : x) sum += v = std::exp(v - largest);
  for (double& v : x) v /= sum;
  return x;
}

// Ids of the k largest, ties to the lower id.
std::vector<int> top(const std::vector<double>& x, int k) {
  std::vector<int> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
  });
  ids.resize(static_cast<std::size_t>(k));
  return ids;
}

// The routers as transformers writes them, in double.
void naive_route(const RouterSpec& spec, const float* logits, const float* bias, std::vector<int>& ids,
                 std::vector<double>& weights) {
  std::vector<double> x(logits, logits + spec.experts), value = x;
  if (spec.kind == RouterKind::softmax_top_k) value = softmax(x), ids = top(value, spec.top_k);
  if (spec.kind == RouterKind::top_k_softmax) ids = top(x, spec.top_k);
  if (spec.kind == RouterKind::sigmoid_group_top_k) {
    std::vector<double> score, group_score;
    for (int e = 0; e < spec.experts; ++e) {
      value[static_cast<std::size_t>(e)] = 1.0 / (1.0 + std::exp(-x[static_cast<std::size_t>(e)]));
      score.push_back(value[static_cast<std::size_t>(e)] + (bias ? bias[e] : 0.0));
    }
    const int size = spec.experts / spec.groups;
    for (int g = 0; g < spec.groups; ++g) {
      std::vector<double> members(score.begin() + g * size, score.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      group_score.push_back(members[0] + members[1]);
    }
    const std::vector<int> kept = top(group_score, spec.top_groups);
    for (int e = 0; e < spec.experts; ++e) {
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end())
        score[static_cast<std::size_t>(e)] = -INFINITY;
    }
    ids = top(score, spec.top_k);
  }
  weights.clear();
  for (int id : ids) weights.push_back(value[static_cast<std::size_t>(id)]);
  if (spec.kind == RouterKind::top_k_softmax) weights = softmax(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& w : weights) w = (spec.renormalise ? w / sum : w) * spec.scaling;
}

TEST(Route, EveryKindEqualsTheReference) {
  Rig rig(platform::cpu::best_isa());
  const RouterSpec specs[] = {
      {RouterKind::softmax_top_k, 8, 2, 1, 1, false, 1.0f},
      {RouterKind::softmax_top_k, 60, 4, 1, 1, true, 1.0f},
      {RouterKind::top_k_softmax, 32, 4, 1, 1, false, 1.0f},
      {RouterKind::sigmoid_group_top_k, 16, 4, 4, 2, true, 2.5f},
      {RouterKind::sigmoid_group_top_k, 256, 4, 8, 4, true, 2.5f},
      {RouterKind::sigmoid_group_top_k, 8, 3, 2, 1, false, 1.0f},
  };
  for (const RouterSpec& spec : specs) {
    const std::int64_t rows = 130;
    std::vector<float> logits = random_floats(rows * spec.experts, 5, 2.0f),
                       bias = random_floats(spec.experts, 6, 0.6f);
    std::vector<std::int32_t> expert(static_cast<std::size_t>(rows * spec.top_k));
    std::vector<float> weight(expert.size());
    rig.ops->route({spec, view(logits, rows, spec.experts), bias.data(), expert.data(), weight.data()},
                   *rig.stream);
    rig.stream->synchronize();
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<int> ids;
      std::vector<double> weights;
      naive_route(spec, logits.data() + r * spec.experts, bias.data(), ids, weights);
      for (int k = 0; k < spec.top_k; ++k) {
        const auto at = static_cast<std::size_t>(r * spec.top_k + k);
        ASSERT_EQ(expert[at], ids[static_cast<std::size_t>(k)]) << "row " << r;
        ASSERT_NEAR(weight[at], weights[static_cast<std::size_t>(k)], 2e-6 * spec.scaling);
      }
    }
  }
}

TEST(Route, TiesGoToTheLowerExpert) {
  Rig rig(platform::cpu::best_isa());
  std::vector<float> logits(12, 0.5f);
  std::vector<std::int32_t> expert(3);
  std::vector<float> weight(3);
  RouterSpec spec{RouterKind::sigmoid_group_top_k, 12, 3, 3, 2, true, 1.0f};
  rig.ops->route({spec, view(logits, 1, 12), nullptr, expert.data(), weight.data()}, *rig.stream);
  rig.stream->synchronize();
  EXPECT_EQ(expert, (std::vector<std::int32_t>{0, 1, 2}));
}

struct Experts {
  Experts(WeightFormat format, std::int64_t experts, std::int64_t hidden, std::int64_t inter)
      : gate(random_weight(format, inter, hidden, 1, experts)),
        up(random_weight(format, inter, hidden, 2, experts)),
        down(random_weight(format, hidden, inter, 3, experts)),
        gate_bias(random_floats(experts * inter, 4)),
        up_bias(random_floats(experts * inter, 5)),
        down_bias(random_floats(experts * hidden, 6)) {}
  TestWeight gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;
};

MoeMlp make_args(const Experts& e, TensorView x, const std::int32_t* expert, const float* weight, int top_k,
                 Activation kind, TensorView y) {
  MoeMlp args{x, expert, weight, top_k, e.gate.view, e.up.view, e.down.view};
  args.gate_bias = e.gate_bias.data();
  args.up_bias = e.up_bias.data();
  args.down_bias = e.down_bias.data();
  args.kind = kind;
  args.limit = 3.0f;
  args.y = y;
  return args;
}

// One row through plain linear and gated_activation calls, combined in double; the second half of the
// result is the sum of the magnitudes.
std::vector<double> by_parts(Rig& rig, const Experts& e, std::vector<float> x, const std::int32_t* expert,
                             const float* weight, int top_k, Activation kind) {
  const std::int64_t hidden = e.gate.view.cols, inter = e.gate.view.rows;
  std::vector<double> y(static_cast<std::size_t>(2 * hidden), 0.0);
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t id = expert[k];
    std::vector<float> gate(static_cast<std::size_t>(inter)), up(gate), out(static_cast<std::size_t>(hidden));
    Linear first{view(x, 1, hidden), {}, 2};
    first.targets[0] = {e.gate.view.expert(id), e.gate_bias.data() + id * inter, view(gate, 1, inter)};
    first.targets[1] = {e.up.view.expert(id), e.up_bias.data() + id * inter, view(up, 1, inter)};
    rig.ops->linear(first, *rig.stream);
    rig.ops->gated_activation({kind, 3.0f, view(gate, 1, inter), view(up, 1, inter), view(gate, 1, inter)},
                              *rig.stream);
    Linear second{view(gate, 1, inter), {}, 1};
    second.targets[0] = {e.down.view.expert(id), e.down_bias.data() + id * hidden, view(out, 1, hidden)};
    rig.ops->linear(second, *rig.stream);
    rig.stream->synchronize();
    for (std::size_t i = 0; i < out.size(); ++i) {
      y[i] += double{weight[k]} * out[i];
      y[out.size() + i] += std::fabs(double{weight[k]} * out[i]);
    }
  }
  return y;
}

class Mixture : public ::testing::TestWithParam<Isa> {};

TEST_P(Mixture, EqualsItsPartsAndRowsStandAlone) {
  for (WeightFormat format :
       {WeightFormat::f32, WeightFormat::q8_0, WeightFormat::mxfp4, WeightFormat::bf16}) {
    for (Activation kind : {Activation::silu, Activation::swiglu_clamp}) {
      Rig rig(GetParam(), 2), single(GetParam(), 1);
      const std::int64_t rows = 100, hidden = 96, inter = 160, experts = 7;
      const int top_k = 3;
      const Experts e(format, experts, hidden, inter);
      std::vector<float> x = random_floats(rows * hidden, 7), y(x.size(), NAN);
      std::vector<std::int32_t> expert;
      std::mt19937 random(9);
      for (std::int64_t r = 0; r < rows; ++r) {
        // Expert 6 is nobody's; the chosen ones differ within a row.
        const auto first = static_cast<std::int32_t>(random() % 6);
        for (int k = 0; k < top_k; ++k) expert.push_back((first + k * 2) % 6);
      }
      std::vector<float> weight = random_floats(rows * top_k, 10);
      rig.ops->moe_mlp(make_args(e, view(x, rows, hidden), expert.data(), weight.data(), top_k, kind,
                                 view(y, rows, hidden)),
                       *rig.stream);
      rig.stream->synchronize();
      for (std::int64_t r = 0; r < rows; r += 13) {
        const std::vector<float> row(x.begin() + r * hidden, x.begin() + (r + 1) * hidden);
        const std::vector<double> expected =
            by_parts(rig, e, row, expert.data() + r * top_k, weight.data() + r * top_k, top_k, kind);
        for (std::int64_t i = 0; i < hidden; ++i) {
          ASSERT_NEAR(y[static_cast<std::size_t>(r * hidden + i)], expected[static_cast<std::size_t>(i)],
                      1e-6 * expected[static_cast<std::size_t>(hidden + i)]);
        }
      }
      for (std::int64_t count : {1, 2, 5, 33}) {
        const std::int64_t first = count * 2;
        std::vector<float> part(static_cast<std::size_t>(count * hidden), NAN);
        single.ops->moe_mlp(
            make_args(e, TensorView::matrix(x.data() + first * hidden, DType::f32, count, hidden),
                      expert.data() + first * top_k, weight.data() + first * top_k, top_k, kind,
                      view(part, count, hidden)),
            *single.stream);
        single.stream->synchronize();
        ASSERT_EQ(std::memcmp(part.data(), y.data() + first * hidden, part.size() * 4), 0)
            << weight_format_info(format).name << " " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Mixture, ::testing::ValuesIn(levels()),
                         [](const auto& level) { return std::string(to_string(level.param)); });

}  // namespace
}  // namespace quire::ops::cpu
