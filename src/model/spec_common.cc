#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/printable.h"
#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::JsonView;
using checkpoint::printable;

// Features of some configs that no family here implements, with the value that means "not used".
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kUnimplemented{{
    {"mlp_bias", "false"},
    {"clip_qkv", "null"},
    {"qk_layernorm", "false"},
    {"use_qk_norm", "false"},
    {"partial_rotary_factor", "1"},
    {"rotary_pct", "1"},
    {"alibi", "false"},
    {"attention_chunk_size", "null"},
    {"use_bidirectional_attention", "false"},
    {"add_cross_attention", "false"},
    {"is_encoder_decoder", "false"},
    {"no_rope_layers", "null"},
    {"logit_scale", "1"},
    {"residual_multiplier", "1"},
}};

Result<DType> read_dtype(const JsonView& config) {
  const std::string_view key = config.has("dtype") ? "dtype" : "torch_dtype";
  if (!config.has(key)) return DType::f32;
  QUIRE_TRY(name, config.string(key));
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  return bad_input(fmt::format("{}: {} is {}, but must be float32, bfloat16 or float16", config.where(), key,
                               printable(name)));
}

// Reads the sizes that all families have under the same keys.
Status read_sizes(const JsonView& config, ModelSpec& spec, std::int32_t* layers) {
  QUIRE_TRY(vocab, config.integer("vocab_size", 1, kMaxVocab));
  QUIRE_TRY(hidden, config.integer("hidden_size", 1, kMaxHidden));
  QUIRE_TRY(intermediate, config.integer("intermediate_size", 1, kMaxIntermediate));
  QUIRE_TRY(count, config.integer("num_hidden_layers", 1, kMaxLayers));
  QUIRE_TRY(q_heads, config.integer("num_attention_heads", 1, kMaxHeads));
  QUIRE_TRY(kv_heads, config.integer_or("num_key_value_heads", q_heads, 1, kMaxHeads));
  QUIRE_TRY(context, config.integer("max_position_embeddings", 1, kMaxContext));
  if (!config.has("head_dim") && hidden % q_heads != 0) {
    return bad_input(
        fmt::format("{}: hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
                    config.where(), hidden, q_heads));
  }
  QUIRE_TRY(head_dim, config.integer_or("head_dim", hidden / q_heads, 1, kMaxHeadDim));
  spec.vocab = static_cast<std::int32_t>(vocab);
  spec.hidden = static_cast<std::int32_t>(hidden);
  spec.intermediate = static_cast<std::int32_t>(intermediate);
  spec.q_heads = static_cast<std::int32_t>(q_heads);
  spec.kv_heads = static_cast<std::int32_t>(kv_heads);
  spec.qk_dim = static_cast<std::int32_t>(head_dim);
  spec.v_dim = spec.qk_dim;
  spec.max_context = context;
  *layers = static_cast<std::int32_t>(count);
  return {};
}

Result<Activation> read_activation(const JsonView& config, std::string_view key) {
  QUIRE_TRY(name, config.string_or(key, key == "hidden_act" ? "silu" : "gelu_pytorch_tanh"));
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  return bad_input(fmt::format("{}: {} {} is not supported; silu and gelu_pytorch_tanh are", config.where(),
                               key, printable(name)));
}

// rope_type of a rope object, as the old key `type` too. Refuses every kind but those below.
Result<RopeKind> read_rope_kind(const JsonView& object) {
  const std::string_view key = object.has("rope_type") ? "rope_type" : "type";
  QUIRE_TRY(name, object.string_or(key, "default"));
  if (name == "default") return RopeKind::plain;
  if (name == "linear") return RopeKind::linear;
  if (name == "llama3") return RopeKind::llama3;
  if (name == "yarn") return RopeKind::yarn;
  if (name == "dynamic") {
    return bad_input(
        fmt::format("{}: dynamic NTK rope is not supported: its table changes with the length, which cached "
                    "keys cannot follow; yarn, llama3 and linear are",
                    object.where()));
  }
  return bad_input(fmt::format("{}: the rope type {} is not supported; default, linear, llama3 and yarn are",
                               object.where(), printable(name)));
}

// Keys that change the table in ways not known here must not be passed over.
Status check_rope_keys(const JsonView& object) {
  constexpr std::array<std::string_view, 15> kKnown{"rope_theta",
                                                    "rope_type",
                                                    "type",
                                                    "factor",
                                                    "low_freq_factor",
                                                    "high_freq_factor",
                                                    "original_max_position_embeddings",
                                                    "beta_fast",
                                                    "beta_slow",
                                                    "truncate",
                                                    "mscale",
                                                    "mscale_all_dim",
                                                    "attention_factor",
                                                    "partial_rotary_factor",
                                                    "finetuned"};
  for (const std::string& key : object.keys()) {
    if (object.has(key) && std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      return bad_input(fmt::format("{}: the key {} is not supported", object.where(), printable(key)));
    }
  }
  return require_off(object, "partial_rotary_factor", "1");
}

Status read_yarn(const JsonView& object, RopeSpec& rope, double* mscale_all_dim) {
  QUIRE_TRY(fast, object.number_or("beta_fast", 32.0, 1e-6, kMaxReal));
  QUIRE_TRY(slow, object.number_or("beta_slow", 1.0, 1e-6, kMaxReal));
  QUIRE_TRY(truncate, object.boolean_or("truncate", true));
  QUIRE_TRY(mscale, object.number_or("mscale", 0.0, 0.0, 1e6));
  QUIRE_TRY(all_dim, object.number_or("mscale_all_dim", 0.0, 0.0, 1e6));
  const double usual = mscale > 0 && all_dim > 0
                           ? yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim)
                           : yarn_mscale(rope.factor, 1.0);
  QUIRE_TRY(attention_factor, object.number_or("attention_factor", usual, 1e-6, 1e6));
  rope.beta_fast = fast;
  rope.beta_slow = slow;
  rope.truncate = truncate;
  rope.cos_sin_factor = attention_factor;
  *mscale_all_dim = all_dim;
  return {};
}

}  // namespace

Status require_off(const JsonView& config, std::string_view key, std::string_view off) {
  if (!config.has(key)) return {};
  const auto& value = config.raw()[std::string(key)];
  const auto wanted = nlohmann::json::parse(off);
  if (value == wanted) return {};  // 1 equals 1.0
  return bad_input(fmt::format("{}: {} is {}: that is not supported, only {} is", config.where(), key,
                               printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)),
                               off));
}

Result<ModelSpec> read_common(const JsonView& config, const ConfigDefaults& defaults,
                              std::int32_t* layers_out) {
  ModelSpec spec;
  QUIRE_TRY(quant, read_quant(config));
  for (const auto& [key, off] : kUnimplemented) QUIRE_TRY_STATUS(require_off(config, key, off));
  QUIRE_TRY_STATUS(read_sizes(config, spec, layers_out));
  QUIRE_TRY(dtype, read_dtype(config));
  QUIRE_TRY(eps, config.number("rms_norm_eps", 0.0, 1.0));
  QUIRE_TRY(tied, config.boolean_or("tie_word_embeddings", defaults.tied));
  QUIRE_TRY(activation, read_activation(config, defaults.activation_key));
  spec.source = checkpoint::Source::huggingface;
  spec.dtype = dtype;
  spec.norm_eps = eps;
  spec.tied = tied;
  spec.activation = activation;
  spec.quant = std::move(quant);
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.qk_dim));
  return spec;
}

Result<RopeSpec> read_rope_object(const JsonView& object, double theta, const ModelSpec& spec,
                                  double* mscale_all_dim) {
  *mscale_all_dim = 0.0;
  RopeSpec rope;
  rope.rotary_dim = spec.qk_dim;
  QUIRE_TRY_STATUS(check_rope_keys(object));
  QUIRE_TRY(kind, read_rope_kind(object));
  QUIRE_TRY(base, object.number_or("rope_theta", theta, 1.0 + 1e-6, kMaxReal));
  rope.kind = kind;
  rope.theta = base;
  if (kind == RopeKind::plain) return rope;
  QUIRE_TRY(original,
            object.integer_or("original_max_position_embeddings", spec.max_context, 1, kMaxContext));
  const double stretched = static_cast<double>(spec.max_context) / static_cast<double>(original);
  if (kind == RopeKind::yarn && !object.has("factor")) {
    rope.factor = stretched;
  } else {
    QUIRE_TRY(factor, object.number("factor", 1e-6, 1e6));
    rope.factor = factor;
  }
  if (kind == RopeKind::linear) return rope;
  rope.original_max = original;
  if (kind == RopeKind::yarn) {
    QUIRE_TRY_STATUS(read_yarn(object, rope, mscale_all_dim));
    return rope;
  }
  QUIRE_TRY(low, object.number("low_freq_factor", 1e-6, 1e6));
  QUIRE_TRY(high, object.number("high_freq_factor", 1e-6, 1e6));
  if (high <= low) {
    return bad_input(
        fmt::format("{}: high_freq_factor {} must be over low_freq_factor {}", object.where(), high, low));
  }
  if (!object.has("original_max_position_embeddings")) {
    return bad_input(fmt::format("{}: the key original_max_position_embeddings is missing", object.where()));
  }
  rope.low_freq_factor = low;
  rope.high_freq_factor = high;
  return rope;
}

Result<RopeSpec> read_rope(const JsonView& config, const ModelSpec& spec, const ConfigDefaults& defaults,
                           double* mscale_all_dim) {
  *mscale_all_dim = 0.0;
  QUIRE_TRY(theta, config.number_or("rope_theta", defaults.theta, 1.0 + 1e-6, kMaxReal));
  if (config.has("rope_parameters") && config.has("rope_scaling")) {
    return bad_input(
        fmt::format("{}: rope_parameters and rope_scaling are both set: keep one", config.where()));
  }
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    QUIRE_TRY(object, config.object(key));
    return read_rope_object(object, theta, spec, mscale_all_dim);
  }
  RopeSpec rope;
  rope.theta = theta;
  rope.rotary_dim = spec.qk_dim;
  return rope;
}

Result<std::vector<bool>> read_sliding(const JsonView& config, std::int32_t layers,
                                       bool (*fallback)(std::int32_t layer, std::int64_t argument),
                                       std::int64_t argument) {
  std::vector<bool> sliding;
  if (!config.has("layer_types")) {
    for (std::int32_t i = 0; i < layers; ++i) sliding.push_back(fallback(i, argument));
    return sliding;
  }
  QUIRE_TRY(types, config.strings("layer_types", static_cast<std::size_t>(kMaxLayers)));
  if (types.size() != static_cast<std::size_t>(layers)) {
    return bad_input(
        fmt::format("{}: layer_types has {} entries for {} layers", config.where(), types.size(), layers));
  }
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return bad_input(
          fmt::format("{}: the layer type {} is not supported; full_attention and sliding_attention are",
                      config.where(), printable(type)));
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

void set_layers(ModelSpec& spec, const std::vector<bool>& sliding, std::int32_t window) {
  for (std::size_t i = 0; i < sliding.size(); ++i) {
    const std::string_view name = sliding[i] ? "window" : spec.latent ? "latent" : "full";
    auto group = std::find_if(spec.groups.begin(), spec.groups.end(),
                              [&](const GroupSpec& g) { return g.name == name; });
    if (group == spec.groups.end()) {
      GroupSpec fresh;
      fresh.name = std::string(name);
      fresh.mask = sliding[i] ? attention::MaskKind::window : attention::MaskKind::causal;
      fresh.window = sliding[i] ? window : 0;
      group = spec.groups.insert(spec.groups.end(), std::move(fresh));
    }
    LayerSpec layer;
    layer.group = static_cast<std::int32_t>(group - spec.groups.begin());
    layer.index_in_group = static_cast<std::int32_t>(group->layers.size());
    group->layers.push_back(static_cast<std::int32_t>(i));
    spec.layers.push_back(layer);
  }
}

Result<ModelSpec> checked(ModelSpec spec) {
  if (spec.q_heads % spec.kv_heads != 0) {
    return bad_input(fmt::format("{}: {} heads are not a multiple of {} key-value heads", spec.architecture,
                                 spec.q_heads, spec.kv_heads));
  }
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.rotary_dim % 2 != 0) {
      return bad_input(
          fmt::format("{}: rope over {} dims: the number must be even", spec.architecture, rope.rotary_dim));
    }
  }
  if (spec.moe) {
    const std::int64_t tensors = static_cast<std::int64_t>(spec.layers.size()) * spec.moe->experts * 3;
    if (tensors > static_cast<std::int64_t>(checkpoint::kMaxTensors)) {
      return bad_input(fmt::format("{}: {} layers of {} experts are over the limit of {} tensors",
                                   spec.architecture, spec.layers.size(), spec.moe->experts,
                                   checkpoint::kMaxTensors));
    }
  }
  QUIRE_TRY_STATUS(check_quant(spec));
  return spec;
}

}  // namespace quire::model
