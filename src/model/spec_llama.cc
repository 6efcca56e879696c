// llama, mistral, qwen2 and qwen3: one forward, different flags.
#include <fmt/format.h>

#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::JsonView;

constexpr std::int64_t kMistralWindow = 4096;  // what MistralConfig takes when the key is absent
constexpr std::int64_t kQwenWindow = 4096;     // and Qwen2Config, Qwen3Config
constexpr std::int64_t kQwenMaxWindowLayers = 28;

bool slides_never(std::int32_t, std::int64_t) { return false; }
bool slides_always(std::int32_t, std::int64_t) { return true; }
bool slides_from(std::int32_t layer, std::int64_t first) { return layer >= first; }

// Shared head: sizes, silu, one rope.
Result<ModelSpec> read_dense(const JsonView& config, std::int32_t* layers) {
  const ConfigDefaults defaults;
  QUIRE_TRY(spec, read_common(config, defaults, layers));
  if (spec.activation != Activation::silu) {
    return bad_input(fmt::format("{}: hidden_act {} is not supported here, only silu is", config.where(),
                                 to_string(spec.activation)));
  }
  double ignored = 0;  // mscale_all_dim acts on latent models only
  QUIRE_TRY(rope, read_rope(config, spec, defaults, &ignored));
  spec.family = Family::llama;
  spec.ropes.push_back(std::move(rope));
  return spec;
}

// use_sliding_window, sliding_window, max_window_layers of the Qwen models.
Status read_qwen_layers(const JsonView& config, ModelSpec& spec, std::int32_t layers) {
  QUIRE_TRY(used, config.boolean_or("use_sliding_window", false));
  QUIRE_TRY(first, config.integer_or("max_window_layers", kQwenMaxWindowLayers, 0, kMaxLayers));
  std::int64_t window = 0;
  if (used && !config.is_null("sliding_window")) {
    QUIRE_TRY(given, config.integer_or("sliding_window", kQwenWindow, 1, kMaxContext));
    window = given;
  }
  QUIRE_TRY(sliding, read_sliding(config, layers, window > 0 ? slides_from : slides_never, first));
  for (const bool slides : sliding) {
    if (slides && window == 0) {
      return bad_input(fmt::format(
          "{}: layer_types has sliding layers, but use_sliding_window or sliding_window is not set",
          config.where()));
    }
  }
  set_layers(spec, sliding, static_cast<std::int32_t>(window));
  return {};
}

}  // namespace

Result<ModelSpec> read_llama_config(const JsonView& config) {
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_dense(config, &layers));
  QUIRE_TRY_STATUS(require_off(config, "sliding_window", "null"));
  QUIRE_TRY(bias, config.boolean_or("attention_bias", false));
  QUIRE_TRY(sliding, read_sliding(config, layers, slides_never, 0));
  for (const bool slides : sliding) {
    if (slides)
      return bad_input(fmt::format("{}: sliding layers are not supported in a llama config", config.where()));
  }
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  set_layers(spec, sliding, 0);
  return spec;
}

Result<ModelSpec> read_mistral_config(const JsonView& config) {
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_dense(config, &layers));
  QUIRE_TRY_STATUS(require_off(config, "attention_bias", "false"));
  const bool off = config.is_null("sliding_window");
  QUIRE_TRY(window, config.integer_or("sliding_window", kMistralWindow, 1, kMaxContext));
  QUIRE_TRY(sliding, read_sliding(config, layers, off ? slides_never : slides_always, 0));
  for (const bool slides : sliding) {
    if (slides && off)
      return bad_input(
          fmt::format("{}: layer_types has sliding layers, but sliding_window is null", config.where()));
  }
  set_layers(spec, sliding, static_cast<std::int32_t>(window));
  return spec;
}

Result<ModelSpec> read_qwen2_config(const JsonView& config) {
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_dense(config, &layers));
  spec.qkv_bias = true;  // Qwen2 has them without saying so
  QUIRE_TRY_STATUS(read_qwen_layers(config, spec, layers));
  return spec;
}

Result<ModelSpec> read_qwen3_config(const JsonView& config) {
  std::int32_t layers = 0;
  // Qwen3Config has a head_dim of 128 of its own, not hidden / heads.
  if (!config.has("head_dim"))
    return bad_input(fmt::format("{}: the key head_dim is missing", config.where()));
  QUIRE_TRY(spec, read_dense(config, &layers));
  QUIRE_TRY(bias, config.boolean_or("attention_bias", false));
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.qk_norm = true;
  QUIRE_TRY_STATUS(read_qwen_layers(config, spec, layers));
  return spec;
}

}  // namespace quire::model
