// gpt_oss and deepseek_v3: mixtures of experts; sinks and biases there, latent attention here.
#include <fmt/format.h>

#include <cmath>

#include "checkpoint/printable.h"
#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::JsonView;

constexpr double kGptOssTheta = 150000.0;
constexpr double kSwigluAlpha = 1.702;  // fixed in the reference, not in the config

bool slides_every_second(std::int32_t layer, std::int64_t) { return layer % 2 == 0; }
bool slides_never(std::int32_t, std::int64_t) { return false; }

Result<std::int32_t> size_of(const JsonView& config, std::string_view key, std::int64_t low,
                             std::int64_t high) {
  QUIRE_TRY(value, config.integer(key, low, high));
  return static_cast<std::int32_t>(value);
}

// A key that, when present, must hold one text.
Status require_text(const JsonView& config, std::string_view key, std::string_view wanted) {
  QUIRE_TRY(value, config.string_or(key, wanted));
  if (value == wanted) return {};
  return bad_input(fmt::format("{}: {} {} is not supported, only {} is", config.where(), key,
                               checkpoint::printable(value), wanted));
}

Result<LatentSpec> read_latent(const JsonView& config) {
  LatentSpec latent;
  QUIRE_TRY(q_rank, config.integer_or("q_lora_rank", 0, 1, kMaxHidden));
  QUIRE_TRY(kv_rank, size_of(config, "kv_lora_rank", 1, kMaxHidden));
  QUIRE_TRY(nope, size_of(config, "qk_nope_head_dim", 1, kMaxHeadDim));
  QUIRE_TRY(rope, size_of(config, "qk_rope_head_dim", 2, kMaxHeadDim));
  QUIRE_TRY(v, size_of(config, "v_head_dim", 1, kMaxHeadDim));
  latent.q_lora_rank = static_cast<std::int32_t>(q_rank);
  latent.kv_lora_rank = kv_rank;
  latent.nope_dim = nope;
  latent.rope_dim = rope;
  latent.v_dim = v;
  return latent;
}

Result<MoeSpec> read_deepseek_moe(const JsonView& config) {
  QUIRE_TRY_STATUS(require_text(config, "scoring_func", "sigmoid"));
  QUIRE_TRY_STATUS(require_text(config, "topk_method", "noaux_tc"));
  QUIRE_TRY_STATUS(require_off(config, "moe_layer_freq", "1"));
  MoeSpec moe;
  moe.routing = Routing::sigmoid_grouped;
  QUIRE_TRY(experts, size_of(config, "n_routed_experts", 1, kMaxExperts));
  QUIRE_TRY(top_k, size_of(config, "num_experts_per_tok", 1, experts));
  QUIRE_TRY(wide, size_of(config, "moe_intermediate_size", 1, kMaxIntermediate));
  QUIRE_TRY(groups, size_of(config, "n_group", 1, experts));
  QUIRE_TRY(top_groups, size_of(config, "topk_group", 1, groups));
  QUIRE_TRY(shared, config.integer_or("n_shared_experts", 0, 0, kMaxExperts));
  QUIRE_TRY(normalise, config.boolean_or("norm_topk_prob", true));
  QUIRE_TRY(scale, config.number_or("routed_scaling_factor", 1.0, 0.0, 1e6));
  const std::int32_t per_group = experts / groups;
  if (experts % groups != 0 || per_group < 2 || top_k > top_groups * per_group) {
    return bad_input(fmt::format(
        "{}: {} experts in {} groups with {} experts of {} groups chosen cannot be: groups must be "
        "equal, of at least two, and the chosen ones hold num_experts_per_tok",
        config.where(), experts, groups, top_k, top_groups));
  }
  if (shared * wide > kMaxIntermediate) {
    return bad_input(fmt::format("{}: {} shared experts of {} are over the limit of {}", config.where(),
                                 shared, wide, kMaxIntermediate));
  }
  moe.experts = experts;
  moe.top_k = top_k;
  moe.intermediate = wide;
  moe.groups = groups;
  moe.top_groups = top_groups;
  moe.normalise = normalise;
  moe.scale = scale;
  moe.shared_intermediate = static_cast<std::int32_t>(shared) * wide;
  return moe;
}

Result<MoeSpec> read_gpt_oss_moe(const JsonView& config, std::int32_t intermediate) {
  MoeSpec moe;
  QUIRE_TRY(experts, size_of(config, "num_local_experts", 1, kMaxExperts));
  const std::string_view key =
      config.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  QUIRE_TRY(top_k, size_of(config, key, 1, experts));
  moe.experts = experts;
  moe.top_k = top_k;
  moe.intermediate = intermediate;
  moe.biases = true;
  return moe;
}

}  // namespace

Result<ModelSpec> read_gpt_oss_config(const JsonView& config) {
  const ConfigDefaults defaults{.theta = kGptOssTheta};
  std::int32_t layers = 0;
  if (!config.has("head_dim"))
    return bad_input(fmt::format("{}: the key head_dim is missing", config.where()));
  QUIRE_TRY(spec, read_common(config, defaults, &layers));
  QUIRE_TRY_STATUS(require_text(config, "hidden_act", "silu"));
  QUIRE_TRY(bias, config.boolean_or("attention_bias", true));
  QUIRE_TRY(limit, config.number_or("swiglu_limit", spec.swiglu_limit, 1e-6, kMaxReal));
  QUIRE_TRY(window, config.integer("sliding_window", 1, kMaxContext));
  QUIRE_TRY(moe, read_gpt_oss_moe(config, spec.intermediate));
  double ignored = 0;  // mscale_all_dim acts on latent models only
  QUIRE_TRY(rope, read_rope(config, spec, defaults, &ignored));
  QUIRE_TRY(sliding, read_sliding(config, layers, slides_every_second, 0));
  spec.family = Family::gpt_oss;
  spec.activation = Activation::swiglu_clamped;
  spec.swiglu_alpha = kSwigluAlpha;
  spec.swiglu_limit = limit;
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.sinks = true;
  spec.moe = moe;
  spec.ropes.push_back(std::move(rope));
  set_layers(spec, sliding, static_cast<std::int32_t>(window));
  for (LayerSpec& layer : spec.layers) layer.moe = true;
  return spec;
}

Result<ModelSpec> read_deepseek_v3_config(const JsonView& config) {
  const ConfigDefaults defaults;
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_common(config, defaults, &layers));
  QUIRE_TRY_STATUS(require_text(config, "hidden_act", "silu"));
  QUIRE_TRY_STATUS(require_off(config, "attention_bias", "false"));
  QUIRE_TRY(latent, read_latent(config));
  QUIRE_TRY(moe, read_deepseek_moe(config));
  QUIRE_TRY(dense, config.integer_or("first_k_dense_replace", 0, 0, kMaxLayers));
  QUIRE_TRY(interleave, config.boolean_or("rope_interleave", true));
  spec.family = Family::deepseek_v3;
  spec.latent = latent;
  spec.moe = moe;
  spec.kv_heads = spec.q_heads;  // of the expanded form; the cache has one row for all
  double mscale_all_dim = 0;
  spec.qk_dim = latent.rope_dim;  // what read_rope turns
  QUIRE_TRY(rope, read_rope(config, spec, defaults, &mscale_all_dim));
  rope.interleaved = interleave;
  const double temperature = mscale_all_dim > 0 ? yarn_mscale(rope.factor, mscale_all_dim) : 1.0;
  spec.qk_dim = latent.nope_dim + latent.rope_dim;
  spec.v_dim = latent.v_dim;
  spec.attention_scale = temperature * temperature / std::sqrt(static_cast<double>(spec.qk_dim));
  spec.ropes.push_back(std::move(rope));
  QUIRE_TRY(sliding, read_sliding(config, layers, slides_never, 0));
  for (const bool slides : sliding) {
    if (slides)
      return bad_input(
          fmt::format("{}: sliding layers are not supported with latent attention", config.where()));
  }
  set_layers(spec, sliding, 0);
  for (std::size_t i = 0; i < spec.layers.size(); ++i)
    spec.layers[i].moe = static_cast<std::int64_t>(i) >= dense;
  return spec;
}

}  // namespace quire::model
