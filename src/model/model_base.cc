#include "model/model_base.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::model {

Buffers Buffers::plan(Region& region, const ModelSpec& spec, std::int64_t rows, DType type) {
  Buffers b;
  b.residual = region.matrix(kResidual, rows, spec.hidden);
  b.normed = region.matrix(type, rows, spec.hidden);
  b.branch = region.matrix(type, rows, spec.hidden);
  // Outputs of weights that lie side by side lie side by side too: a device may make one product of them.
  const std::int64_t q = std::int64_t{spec.q_heads} * spec.qk_dim;
  const std::int64_t k = spec.latent ? 0 : std::int64_t{spec.kv_heads} * spec.qk_dim;
  const std::int64_t v = spec.latent ? 0 : std::int64_t{spec.kv_heads} * spec.v_dim;
  const TensorView qkv = region.matrix(type, rows, q + k + v);
  b.q = qkv.cols_slice(0, q);
  if (!spec.latent) {
    b.k = qkv.cols_slice(q, k);
    b.v = qkv.cols_slice(q + k, v);
  }
  b.attended = region.matrix(type, rows, std::int64_t{spec.q_heads} * spec.v_dim);
  std::int64_t width = 0;
  for (const LayerSpec& layer : spec.layers)
    if (!layer.moe) width = std::max<std::int64_t>(width, spec.intermediate);
  if (spec.moe) width = std::max<std::int64_t>(width, spec.moe->shared_intermediate);
  if (width > 0) {
    const TensorView gate_up = region.matrix(type, rows, 2 * width);
    b.gate = gate_up.cols_slice(0, width);
    b.up = gate_up.cols_slice(width, width);
  }
  if (spec.moe) {
    if (spec.moe->shared_intermediate > 0) b.shared = region.matrix(type, rows, spec.hidden);
    b.router = region.matrix(kLogits, rows, spec.moe->experts);
    b.expert = region.take_array<std::int32_t>(rows * spec.moe->top_k);
    b.expert_weight = region.take_array<float>(rows * spec.moe->top_k);
  }
  for (const RopeSpec& rope : spec.ropes)
    b.cos_sin.push_back(region.take_array<float>(rows * rope.rotary_dim));
  return b;
}

Buffers Buffers::first_rows(std::int64_t rows) const {
  Buffers b = *this;
  for (TensorView* view : {&b.residual, &b.normed, &b.branch, &b.q, &b.k, &b.v, &b.attended, &b.gate, &b.up,
                           &b.shared, &b.router})
    if (view->data != nullptr) *view = view->rows_slice(0, rows);
  return b;
}

std::int64_t ModelBase::activation_bytes(const ModelLimits& limits) const {
  Region region(nullptr);
  Buffers::plan(region, spec_, limits.max_total_q, limits.compute);
  return region.used() + family_bytes(limits);
}

void ModelBase::set_activations(void* data, std::int64_t bytes, const ModelLimits& limits) {
  const std::int64_t needed = activation_bytes(limits);
  QUIRE_CHECK(bytes >= needed, "bytes={} needed={}", bytes, needed);
  Region region(data);
  buffers_ = Buffers::plan(region, spec_, limits.max_total_q, limits.compute);
  max_total_q_ = limits.max_total_q;
  set_family_activations(static_cast<char*>(data) + region.used(), limits);
}

void ModelBase::set_kv(std::span<const std::vector<KvView>> views) {
  QUIRE_CHECK(views.size() == spec_.groups.size(), "views={} groups={}", views.size(), spec_.groups.size());
  kv_.assign(views.begin(), views.end());
}

const KvView& ModelBase::kv(std::size_t layer) const {
  const LayerSpec& place = spec_.layers[layer];
  return kv_[place.group][place.index_in_group];
}

const float* ModelBase::next_norm(std::size_t layer) const {
  return layer + 1 < weights_.layers.size() ? weights_.layers[layer + 1].attn_norm : weights_.final_norm;
}

TensorView ModelBase::next_input(const Step& step, std::size_t layer, TensorView hidden) const {
  return layer + 1 < weights_.layers.size() ? step.b.normed : hidden;
}

void ModelBase::rope_angles(const StepContext& context, const StepInputs& inputs, const Buffers& b) {
  for (std::size_t i = 0; i < spec_.ropes.size(); ++i) {
    const RopeSpec& rope = spec_.ropes[i];
    ops::RopeAngles args;
    args.positions = inputs.positions;
    args.inv_freq = weights_.inv_freq[i];
    args.attention_factor = static_cast<float>(rope.cos_sin_factor);
    args.rotary_dim = rope.rotary_dim;
    args.rows = inputs.total_q;
    args.cos_sin = b.cos_sin[i];
    context.ops.rope_angles(args, context.stream);
  }
}

void ModelBase::forward(const StepContext& context, const StepInputs& inputs, TensorView hidden) {
  QUIRE_CHECK(inputs.total_q <= max_total_q_ && hidden.rows() == inputs.total_q,
              "total_q={} max={} hidden={}", inputs.total_q, max_total_q_, hidden.rows());
  const Step step{context, inputs, spec_, buffers_.first_rows(inputs.total_q)};
  plan_attention(context, inputs, spec_, planned());
  begin_step(context, inputs);
  rope_angles(context, inputs, step.b);

  ops::Embed embed;
  embed.table = weights_.embed;
  embed.tokens = inputs.tokens;
  embed.scale = static_cast<float>(spec_.embed_scale);
  embed.y = step.b.residual;
  context.ops.embed(embed, context.stream);
  rms_norm(step, step.b.residual, {}, weights_.layers[0].attn_norm, step.b.normed);
  layers(step, hidden);
}

void ModelBase::logits(const StepContext& context, TensorView hidden, TensorView logits) {
  ops::Linear head;
  head.x = hidden;
  head.targets[0] = {weights_.lm_head, nullptr, logits};
  head.target_count = 1;
  head.x_rounding = x_rounding(spec_);
  context.ops.linear(head, context.stream);
  if (spec_.final_softcap <= 0) return;
  ops::SoftcapScale cap;
  cap.x = logits;
  cap.cap = static_cast<float>(spec_.final_softcap);
  context.ops.softcap_scale(cap, context.stream);
}

}  // namespace quire::model
