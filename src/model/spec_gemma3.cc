// gemma3, text only: two groups, two ropes, (1 + w) norms around both blocks.
#include <fmt/format.h>

#include <cmath>

#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::JsonView;

constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;
constexpr std::int64_t kPattern = 6;  // five sliding layers, one full

bool slides_in_pattern(std::int32_t layer, std::int64_t pattern) { return (layer + 1) % pattern != 0; }

// ropes[0] full, ropes[1] sliding. Scaling acts on the full layers only.
Status read_ropes(const JsonView& config, ModelSpec& spec) {
  double ignored = 0;
  const ConfigDefaults full_defaults{.theta = kGlobalTheta};
  RopeSpec full;
  RopeSpec local;
  local.rotary_dim = spec.qk_dim;
  QUIRE_TRY(local_theta, config.number_or("rope_local_base_freq", kLocalTheta, 1.0 + 1e-6, kMaxReal));
  local.theta = local_theta;
  if (!config.has("rope_parameters")) {
    QUIRE_TRY(rope, read_rope(config, spec, full_defaults, &ignored));
    full = std::move(rope);
  } else {
    QUIRE_TRY(object, config.object("rope_parameters"));
    QUIRE_TRY(full_object, object.object("full_attention"));
    QUIRE_TRY(local_object, object.object("sliding_attention"));
    QUIRE_TRY(full_rope, read_rope_object(full_object, kGlobalTheta, spec, &ignored));
    QUIRE_TRY(local_rope, read_rope_object(local_object, local_theta, spec, &ignored));
    full = std::move(full_rope);
    local = std::move(local_rope);
  }
  spec.ropes = {std::move(full), std::move(local)};
  return {};
}

Status read_pattern(const JsonView& config, ModelSpec& spec, std::int32_t layers) {
  const std::string_view key =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  QUIRE_TRY(pattern, config.integer_or(key, kPattern, 1, kMaxLayers));
  QUIRE_TRY(window, config.integer("sliding_window", 1, kMaxContext));
  QUIRE_TRY(sliding, read_sliding(config, layers, slides_in_pattern, pattern));
  set_layers(spec, sliding, static_cast<std::int32_t>(window));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].rope = sliding[i] ? 1 : 0;
  return {};
}

}  // namespace

Result<ModelSpec> read_gemma3_config(const JsonView& config) {
  const ConfigDefaults defaults{.theta = kGlobalTheta, .tied = true, .activation_key = "hidden_activation"};
  std::int32_t layers = 0;
  if (!config.has("head_dim"))
    return bad_input(fmt::format("{}: the key head_dim is missing", config.where()));
  QUIRE_TRY(spec, read_common(config, defaults, &layers));
  QUIRE_TRY_STATUS(require_off(config, "attention_bias", "false"));
  if (spec.activation != Activation::gelu_tanh) {
    return bad_input(fmt::format("{}: hidden_activation {} is not supported here, only gelu_pytorch_tanh is",
                                 config.where(), to_string(spec.activation)));
  }
  QUIRE_TRY(scalar, config.number("query_pre_attn_scalar", 1e-6, kMaxReal));
  QUIRE_TRY(attention_softcap, config.number_or("attn_logit_softcapping", 0.0, 0.0, kMaxReal));
  QUIRE_TRY(final_softcap, config.number_or("final_logit_softcapping", 0.0, 0.0, kMaxReal));
  spec.family = Family::gemma3;
  spec.norm_plus_one = true;
  spec.qk_norm = true;
  spec.post_norms = true;
  spec.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden)));
  spec.attention_scale = 1.0 / std::sqrt(scalar);
  spec.attention_softcap = attention_softcap;
  spec.final_softcap = final_softcap;
  QUIRE_TRY_STATUS(read_ropes(config, spec));
  QUIRE_TRY_STATUS(read_pattern(config, spec, layers));
  return spec;
}

}  // namespace quire::model
