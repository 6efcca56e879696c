// DeepSeek-V3: latent attention and grouped experts. The cache keeps one row per token, the normed latent and
// the rotated key part that all heads share. Absorbed form: q_nope goes through kv_b's key half into the
// space of the latents, attention runs over the cache rows themselves, and its output leaves through kv_b's
// value half. Below schedule_invariant extend rows take the dense form (mla_extend.h).
#include <memory>
#include <utility>

#include "model/families.h"
#include "model/mla_extend.h"
#include "model/model_base.h"

namespace quire::model {
namespace {

class DeepseekV3 : public ModelBase {
 public:
  DeepseekV3(const ModelSpec& spec, Weights weights, platform::Device& device, Determinism level)
      : ModelBase(spec, std::move(weights)) {
    if (uses_dense_extend(spec, level)) dense_ = std::make_unique<MlaExtend>(this->spec(), device);
  }

 private:
  struct Work {
    TensorView q_low;     // [rows, q_lora_rank], or empty
    TensorView kv_row;    // [rows, latent + rope] what the cache keeps
    TensorView q_latent;  // [rows, heads * (latent + rope)]
    TensorView o_latent;  // [rows, heads * latent]
  };

  Work plan_work(Region& region, const ModelLimits& limits) const {
    const LatentSpec& latent = *spec().latent;
    const std::int64_t rows = limits.max_total_q;
    const std::int64_t heads = spec().q_heads;
    Work w;
    w.q_low = region.matrix(limits.compute, rows, latent.q_lora_rank);
    w.kv_row = region.matrix(limits.compute, rows, latent.kv_lora_rank + latent.rope_dim);
    w.q_latent = region.matrix(limits.compute, rows, heads * (latent.kv_lora_rank + latent.rope_dim));
    w.o_latent = region.matrix(limits.compute, rows, heads * latent.kv_lora_rank);
    return w;
  }

  std::int64_t family_bytes(const ModelLimits& limits) const override {
    Region region(nullptr);
    plan_work(region, limits);
    return region.used() + (dense_ ? dense_->bytes(limits) : 0);
  }

  void set_family_activations(void* data, const ModelLimits& limits) override {
    Region region(data);
    work_ = plan_work(region, limits);
    if (dense_) dense_->set_activations(static_cast<char*>(data) + region.used(), limits);
  }

  PlanPhases planned() const override { return {.extend = dense_ == nullptr}; }

  void begin_step(const StepContext& context, const StepInputs& inputs) override {
    if (dense_) dense_->begin_step(context, inputs);
  }

  // normed -> q and the cache row, before rope.
  void project(const Step& step, const LayerWeights& w, TensorView kv_row) {
    const LatentSpec& latent = *spec().latent;
    const Buffers& b = step.b;
    const bool low_rank = latent.q_lora_rank > 0;
    const TensorView q_low = low_rank ? work_.q_low.rows_slice(0, step.rows()) : TensorView{};
    ops::Linear down;
    down.x = b.normed;
    down.targets[0] = {w.kv_a, nullptr, kv_row};
    down.targets[1] =
        low_rank ? ops::LinearTarget{w.q_a, nullptr, q_low} : ops::LinearTarget{w.q, nullptr, b.q};
    down.target_count = 2;
    step.ops().linear(down, step.stream());
    norm_latent(step, kv_row.cols_slice(0, latent.kv_lora_rank), w.kv_a_norm);
    if (!low_rank) return;
    norm_latent(step, q_low, w.q_a_norm);
    linear(step, q_low, w.q_b, nullptr, b.q);
  }

  void norm_latent(const Step& step, TensorView x, const float* weight) {
    ops::RmsNorm args;
    args.x = x;
    args.weight = weight;
    args.eps = static_cast<float>(spec().latent->norm_eps);
    args.y = x;
    step.ops().rms_norm(args, step.stream());
  }

  void rope_and_write(const Step& step, int layer, TensorView q, TensorView kv_row) {
    const LatentSpec& latent = *spec().latent;
    const LayerSpec& place = spec().layers[layer];
    const RopeSpec& rope = spec().ropes[place.rope];
    ops::RopeAndKvWrite write;
    write.q = q;
    write.k = kv_row.split_heads(1);
    write.cos_sin = step.b.cos_sin[place.rope];
    write.rotary_dim = rope.rotary_dim;
    write.q_rope_offset = latent.nope_dim;
    write.k_rope_offset = latent.kv_lora_rank;
    write.interleaved = rope.interleaved;
    write.write_slot = step.inputs.groups[place.group].write_slot;
    write.kv = kv(layer);
    step.ops().rope_and_kv_write(write, step.stream());
  }

  // The first `rows` rows of the step in absorbed form.
  void absorbed(const Step& step, int layer, TensorView q, std::int64_t rows) {
    const LatentSpec& latent = *spec().latent;
    const LayerWeights& w = layer_weights(layer);
    const std::int64_t heads = spec().q_heads;
    const TensorView q_latent = work_.q_latent.rows_slice(0, step.rows()).split_heads(heads);
    const TensorView o_latent = work_.o_latent.rows_slice(0, step.rows()).split_heads(heads);
    const auto first = [rows](TensorView view) { return view.rows_slice(0, rows); };
    step.ops().head_linear(
        {first(head_dims(q, 0, latent.nope_dim)), w.up_k, first(head_dims(q_latent, 0, latent.kv_lora_rank))},
        step.stream());
    step.ops().copy({first(head_dims(q, latent.nope_dim, latent.rope_dim)),
                     first(head_dims(q_latent, latent.kv_lora_rank, latent.rope_dim))},
                    step.stream());
    const int group = spec().layers[layer].group;
    attend_decode(step, group, q_latent, o_latent, kv(layer), nullptr);
    if (!dense_) attend_extend(step, group, q_latent, o_latent, kv(layer), nullptr);
    step.ops().head_linear({first(o_latent), w.up_v, first(step.b.attended.split_heads(heads))},
                           step.stream());
  }

  void attention(const Step& step, int layer) {
    const LayerWeights& w = layer_weights(layer);
    const Buffers& b = step.b;
    const TensorView kv_row = work_.kv_row.rows_slice(0, step.rows());
    const TensorView q = b.q.split_heads(spec().q_heads);
    project(step, w, kv_row);
    rope_and_write(step, layer, q, kv_row);
    const std::int64_t decode = step.inputs.decode_q;
    const std::int64_t extend = step.rows() - decode;
    const std::int64_t absorbed_rows = dense_ ? decode : step.rows();
    if (absorbed_rows > 0) absorbed(step, layer, q, absorbed_rows);
    if (dense_ && extend > 0) {
      MlaExtendArgs args;
      args.q = q.rows_slice(decode, extend);
      args.latent = kv_row.rows_slice(decode, extend);
      args.kv_b = &w.kv_b;
      args.kv = kv(layer);
      args.out = b.attended.split_heads(spec().q_heads).rows_slice(decode, extend);
      dense_->run(step, args);
    }
    linear(step, b.attended, w.o, nullptr, b.branch);
  }

  void layers(const Step& step, TensorView hidden) override {
    const Buffers& b = step.b;
    for (std::size_t i = 0; i < spec().layers.size(); ++i) {
      const LayerWeights& w = layer_weights(i);
      attention(step, static_cast<int>(i));
      rms_norm(step, b.residual, b.branch, w.ffn_norm, b.normed);
      if (spec().layers[i].moe) {
        moe(step, w, b.normed, b.branch);
      } else {
        mlp(step, w.mlp, b.normed, b.branch);
      }
      rms_norm(step, b.residual, b.branch, next_norm(i), next_input(step, i, hidden));
    }
  }

  Work work_;
  std::unique_ptr<MlaExtend> dense_;  // null: extend is absorbed like decode
};

}  // namespace

std::unique_ptr<Model> make_deepseek_v3(const ModelSpec& spec, Weights weights, platform::Device& device,
                                        Determinism level) {
  return std::make_unique<DeepseekV3>(spec, std::move(weights), device, level);
}

}  // namespace quire::model
