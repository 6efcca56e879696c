#include "model/blocks.h"

#include "base/check.h"
#include "model/attend.h"

namespace quire::model {
namespace {

ops::Activation ops_activation(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return ops::Activation::silu;
    case Activation::gelu_tanh:
      return ops::Activation::gelu_tanh;
    case Activation::swiglu_clamped:
      return ops::Activation::swiglu_clamp;
  }
  return ops::Activation::silu;
}

ops::RouterSpec router_spec(const MoeSpec& moe) {
  ops::RouterSpec router;
  router.kind = moe.routing == Routing::softmax_chosen ? ops::RouterKind::top_k_softmax
                                                       : ops::RouterKind::sigmoid_group_top_k;
  router.experts = moe.experts;
  router.top_k = moe.top_k;
  router.groups = moe.groups;
  router.top_groups = moe.top_groups;
  router.renormalise = moe.normalise;
  router.scaling = static_cast<float>(moe.scale);
  return router;
}

}  // namespace

TensorView head_dims(TensorView heads, std::int64_t begin, std::int64_t count) {
  QUIRE_CHECK(heads.rank == 3 && begin + count <= heads.shape[2], "rank={} begin={} count={} dim={}",
              heads.rank, begin, count, heads.shape[2]);
  heads.data = static_cast<char*>(heads.data) + begin * static_cast<std::int64_t>(dtype_bytes(heads.dtype));
  heads.shape[2] = count;
  return heads;
}

void rms_norm(const Step& step, TensorView x, TensorView add, const float* weight, TensorView y) {
  ops::RmsNorm args;
  args.x = x;
  args.add = add;
  args.weight = weight;
  args.eps = static_cast<float>(step.spec.norm_eps);
  args.y = y;
  step.ops().rms_norm(args, step.stream());
}

void linear(const Step& step, TensorView x, const WeightView& weight, const float* bias, TensorView y) {
  ops::Linear args;
  args.x = x;
  args.targets[0] = {weight, bias, y};
  args.target_count = 1;
  args.x_rounding = x_rounding(step.spec);
  step.ops().linear(args, step.stream());
}

void attention_block(const Step& step, int layer, const LayerWeights& weights, const KvView& kv) {
  const ModelSpec& spec = step.spec;
  const LayerSpec& place = spec.layers[layer];
  const Buffers& b = step.b;

  ops::Linear qkv;
  qkv.x = b.normed;
  qkv.targets[0] = {weights.q, weights.q_bias, b.q};
  qkv.targets[1] = {weights.k, weights.k_bias, b.k};
  qkv.targets[2] = {weights.v, weights.v_bias, b.v};
  qkv.target_count = 3;
  qkv.x_rounding = x_rounding(spec);
  step.ops().linear(qkv, step.stream());

  const RopeSpec& rope = spec.ropes[place.rope];
  const TensorView q = b.q.split_heads(spec.q_heads);
  ops::RopeAndKvWrite write;
  write.q = q;
  write.k = b.k.split_heads(spec.kv_heads);
  write.v = b.v.split_heads(spec.kv_heads);
  write.q_norm = weights.q_norm;
  write.k_norm = weights.k_norm;
  write.norm_eps = static_cast<float>(spec.norm_eps);
  write.cos_sin = b.cos_sin[place.rope];
  write.rotary_dim = rope.rotary_dim;
  write.interleaved = rope.interleaved;
  write.write_slot = step.inputs.groups[place.group].write_slot;
  write.kv = kv;
  step.ops().rope_and_kv_write(write, step.stream());

  const TensorView attended = b.attended.split_heads(spec.q_heads);
  attend_decode(step, place.group, q, attended, kv, weights.sinks);
  attend_extend(step, place.group, q, attended, kv, weights.sinks);
  linear(step, b.attended, weights.o, weights.o_bias, b.branch);
}

void mlp(const Step& step, const MlpWeights& weights, TensorView x, TensorView y) {
  const TensorView gate = step.b.gate.cols_slice(0, weights.gate.rows);
  const TensorView up = step.b.up.cols_slice(0, weights.up.rows);
  ops::Linear both;
  both.x = x;
  both.targets[0] = {weights.gate, nullptr, gate};
  both.targets[1] = {weights.up, nullptr, up};
  both.target_count = 2;
  both.x_rounding = x_rounding(step.spec);
  step.ops().linear(both, step.stream());

  ops::GatedActivation activate;
  activate.kind = ops_activation(step.spec.activation);
  activate.limit = static_cast<float>(step.spec.swiglu_limit);
  activate.gate = gate;
  activate.up = up;
  activate.y = gate;
  step.ops().gated_activation(activate, step.stream());
  linear(step, gate, weights.down, nullptr, y);
}

void moe(const Step& step, const LayerWeights& weights, TensorView x, TensorView y) {
  const MoeSpec& spec = *step.spec.moe;
  const Buffers& b = step.b;
  linear(step, x, weights.router, weights.router_bias, b.router);

  ops::Route route;
  route.spec = router_spec(spec);
  route.logits = b.router;
  route.correction_bias = weights.router_correction;
  route.expert = b.expert;
  route.weight = b.expert_weight;
  step.ops().route(route, step.stream());

  ops::MoeMlp experts;
  experts.x = x;
  experts.expert = b.expert;
  experts.weight = b.expert_weight;
  experts.top_k = spec.top_k;
  experts.gate = weights.experts.gate;
  experts.up = weights.experts.up;
  experts.down = weights.experts.down;
  experts.gate_bias = weights.experts_gate_bias;
  experts.up_bias = weights.experts_up_bias;
  experts.down_bias = weights.experts_down_bias;
  experts.kind = ops_activation(step.spec.activation);
  experts.limit = static_cast<float>(step.spec.swiglu_limit);
  experts.y = y;
  step.ops().moe_mlp(experts, step.stream());

  if (weights.shared.gate.empty()) return;
  mlp(step, weights.shared, x, b.shared);
  rms_norm(step, y, b.shared, nullptr, {});
}

}  // namespace quire::model
