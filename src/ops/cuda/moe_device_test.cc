// The router and the experts against the CPU's.
#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::expect_close;
using testing::Host;
using testing::poisoned;
using testing::random_floats;
using testing::random_rows;
using testing::Rig;

TEST(RouteDevice, ChoosesAndWeighsLikeTheCpu) {
  Rig rig;
  std::vector<RouterSpec> specs;
  specs.push_back({RouterKind::softmax_top_k, 128, 8, 1, 1, true, 1.0f});
  specs.push_back({RouterKind::softmax_top_k, 60, 4, 1, 1, false, 1.0f});
  specs.push_back({RouterKind::top_k_softmax, 32, 4, 1, 1, false, 1.0f});
  specs.push_back({RouterKind::sigmoid_group_top_k, 256, 8, 8, 4, true, 2.5f});
  specs.push_back({RouterKind::sigmoid_group_top_k, 16, 4, 4, 2, false, 1.0f});
  for (const RouterSpec& spec : specs) {
    const std::int64_t rows = 33;
    Host logits = random_rows(rows, spec.experts, spec.experts + 8, DType::f32, 3, 2.0f);
    for (std::int64_t r = 0; r < rows; r += 4)
      logits.values[static_cast<std::size_t>(r * (spec.experts + 8) + 3)] =
          logits.values[static_cast<std::size_t>(r * (spec.experts + 8) + 5)];  // ties
    const std::vector<float> correction = random_floats(spec.experts, 4, 0.1f);
    const bool corrected = spec.kind == RouterKind::sigmoid_group_top_k;
    std::vector<std::int32_t> expert(static_cast<std::size_t>(rows * spec.top_k), -1);
    std::vector<float> weight(expert.size(), NAN);
    std::int32_t* device_expert = rig.upload(expert);
    float* device_weight = rig.upload(weight);
    rig.ops->route({spec, rig.mirror(logits, DType::f32), corrected ? rig.upload(correction) : nullptr,
                    device_expert, device_weight},
                   *rig.stream);
    rig.host_ops->route(
        {spec, logits.view, corrected ? correction.data() : nullptr, expert.data(), weight.data()},
        *rig.host_stream);
    rig.finish();
    EXPECT_EQ(rig.download(device_expert, expert.size()), expert) << static_cast<int>(spec.kind);
    expect_close(rig.download(device_weight, weight.size()), weight, DType::f32, 16.0f, 1e-7f, "weights");
  }
}

struct Mixture {
  std::int64_t rows, hidden, inter, experts, top_k;
  Activation kind;
  bool biases;
};

// Both sides get the same bf16 weights and rows; the device rounds the activations between the products.
std::vector<float> run(Rig& rig, const Mixture& m, DType type, std::vector<float>* want) {
  const auto weight = [&](std::int64_t rows, std::int64_t cols, unsigned seed) {
    cpu::testing::TestWeight w = cpu::testing::random_weight(WeightFormat::bf16, rows, cols, seed, m.experts);
    w.view.expert_bytes = rows * w.view.row_bytes;
    return w;
  };
  const cpu::testing::TestWeight gate = weight(m.inter, m.hidden, 1), up = weight(m.inter, m.hidden, 2),
                                 down = weight(m.hidden, m.inter, 3);
  Host x = random_rows(m.rows, m.hidden, m.hidden + 8, DType::bf16, 4, 0.3f),
       y = poisoned(m.rows, m.hidden, m.hidden);
  std::mt19937 random(9);
  std::vector<std::int32_t> expert;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    std::vector<std::int32_t> all;
    // Some experts are chosen often, some never.
    for (std::int32_t e = 0; e < m.experts; ++e) all.push_back(e);
    std::shuffle(all.begin(), all.end() - m.experts / 4, random);
    expert.insert(expert.end(), all.begin(), all.begin() + m.top_k);
  }
  const std::vector<float> share = random_floats(m.rows * m.top_k, 5, 0.5f),
                           gate_bias = random_floats(m.experts * m.inter, 6, 0.2f),
                           up_bias = random_floats(m.experts * m.inter, 7, 0.2f),
                           down_bias = random_floats(m.experts * m.hidden, 8, 0.2f);
  MoeMlp host{x.view,    expert.data(), share.data(), static_cast<std::int32_t>(m.top_k),
              gate.view, up.view,       down.view};
  host.kind = m.kind;
  host.limit = 7.0f;
  host.y = y.view;
  if (m.biases)
    host.gate_bias = gate_bias.data(), host.up_bias = up_bias.data(), host.down_bias = down_bias.data();
  MoeMlp a = host;
  a.x = rig.mirror(x, type);
  a.y = rig.mirror(y, DType::f32);
  a.expert = rig.upload(expert);
  a.weight = rig.upload(share);
  a.gate.data = rig.upload(gate.bytes);
  a.up.data = rig.upload(up.bytes);
  a.down.data = rig.upload(down.bytes);
  if (m.biases)
    a.gate_bias = rig.upload(gate_bias), a.up_bias = rig.upload(up_bias), a.down_bias = rig.upload(down_bias);
  rig.ops->moe_mlp(a, *rig.stream);
  if (want) {
    rig.host_ops->moe_mlp(host, *rig.host_stream);
    rig.host_stream->synchronize();
    *want = y.values;
  }
  return rig.read(a.y, y.values.size());
}

TEST(MoeDevice, AgreesWithTheCpu) {
  Rig rig;
  for (const Mixture& m : {Mixture{1, 128, 64, 8, 2, Activation::silu, false},
                           Mixture{5, 256, 200, 16, 4, Activation::swiglu_clamp, true},
                           Mixture{100, 72, 136, 4, 2, Activation::silu, true},
                           Mixture{150, 512, 512, 6, 3, Activation::gelu_tanh, false}}) {
    std::vector<float> want;
    const std::vector<float> got = run(rig, m, m.rows == 5 ? DType::f32 : DType::bf16, &want);
    float largest = 0.0f;
    for (float x : want) largest = std::max(largest, std::fabs(x));
    // The activations in between are rounded to bf16: errors add up like noise over `inter` terms.
    expect_close(got, want, DType::bf16, 1.0f, 0.004f * largest, "y");
    rig.kept.clear();
  }
}

TEST(MoeDevice, EqualCallsAreEqual) {
  Rig rig;
  const Mixture m{90, 128, 136, 4, 2, Activation::silu, true};
  const std::vector<float> first = run(rig, m, DType::bf16, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(rig, m, DType::bf16, nullptr), first);
}

}  // namespace
}  // namespace quire::ops::cuda
