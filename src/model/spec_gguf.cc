// ModelSpec from GGUF metadata. What differs from the Hugging Face files of the same models: llama's q and
// k rows are stored for rotation in pairs, gemma3's norms are stored with their 1 added.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "checkpoint/printable.h"
#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufFile;
using checkpoint::TensorInfo;

constexpr double kGemmaLocalTheta = 1e4;
constexpr std::int64_t kGemmaPattern = 6;
constexpr std::int64_t kGemma27bLayers = 62;  // the one size whose query scale is not its head size

// The metadata of one architecture: keys are "<architecture>.<name>".
struct Keys {
  const GgufFile& file;
  std::string prefix;

  std::string operator()(std::string_view name) const { return prefix + "." + std::string(name); }
  Result<std::int32_t> size(std::string_view name, std::int64_t high) const {
    QUIRE_TRY(value, file.integer((*this)(name), 1, high));
    return static_cast<std::int32_t>(value);
  }
  // A count that may be given per layer; the layers must agree.
  Result<std::int32_t> count(std::string_view name, std::int64_t high) const {
    QUIRE_TRY(values, file.integers((*this)(name)));
    if (values.empty()) return bad_input(fmt::format("{} is empty", (*this)(name)));
    for (const std::int64_t value : values) {
      if (value < 1 || value > high)
        return bad_input(fmt::format("{} is {}, but must be from 1 to {}", (*this)(name), value, high));
      if (value != values[0])
        return bad_input(fmt::format("{} differs between layers: not supported", (*this)(name)));
    }
    return static_cast<std::int32_t>(values[0]);
  }
};

Status refuse_features(const Keys& keys) {
  for (const std::string_view name :
       {"expert_count", "attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale", "residual_scale",
        "embedding_scale", "attention.scale", "attention.q_lora_rank", "rope.scaling.attn_factor",
        "rope.scaling.yarn_log_multiplier"}) {
    const std::string key = keys(name);
    if (!keys.file.has(key)) continue;
    QUIRE_TRY(value, keys.file.number(key, -kMaxReal, kMaxReal));
    if (value != 0.0)
      return bad_input(
          fmt::format("{} is {}: that is not supported in GGUF {} models", key, value, keys.prefix));
  }
  QUIRE_TRY(causal, keys.file.boolean_or(keys("attention.causal"), true));
  if (!causal)
    return bad_input(fmt::format("{} is false: encoders are not supported", keys("attention.causal")));
  return {};
}

Status read_sizes(const Keys& keys, const Checkpoint& checkpoint, ModelSpec& spec) {
  QUIRE_TRY(hidden, keys.size("embedding_length", kMaxHidden));
  QUIRE_TRY(intermediate, keys.count("feed_forward_length", kMaxIntermediate));
  QUIRE_TRY(q_heads, keys.count("attention.head_count", kMaxHeads));
  QUIRE_TRY(context, keys.size("context_length", kMaxContext));
  spec.kv_heads = q_heads;
  if (keys.file.has(keys("attention.head_count_kv"))) {
    QUIRE_TRY(kv_heads, keys.count("attention.head_count_kv", kMaxHeads));
    spec.kv_heads = kv_heads;
  }
  const std::string length_key = keys("attention.key_length");
  if (!keys.file.has(length_key) && hidden % q_heads != 0) {
    return bad_input(fmt::format("{} {} is not a multiple of {} {}, and {} is missing",
                                 keys("embedding_length"), hidden, keys("attention.head_count"), q_heads,
                                 length_key));
  }
  QUIRE_TRY(qk_dim, keys.file.integer_or(length_key, hidden / q_heads, 1, kMaxHeadDim));
  QUIRE_TRY(v_dim, keys.file.integer_or(keys("attention.value_length"), qk_dim, 1, kMaxHeadDim));
  if (v_dim != qk_dim)
    return bad_input(fmt::format("keys of {} and values of {} dims: not supported", qk_dim, v_dim));
  // Without the key the embedding's rows count.
  const TensorInfo* embed = checkpoint.find("token_embd.weight");
  const std::int64_t rows = embed != nullptr && embed->shape.size() == 2 ? embed->shape[0] : 0;
  QUIRE_TRY(vocab, keys.file.integer_or(keys("vocab_size"), rows, 1, kMaxVocab));
  if (vocab < 1 || vocab > kMaxVocab)
    return bad_input(fmt::format("{} is missing, and so is a usable token_embd.weight", keys("vocab_size")));
  spec.vocab = static_cast<std::int32_t>(vocab);
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.q_heads = q_heads;
  spec.qk_dim = static_cast<std::int32_t>(qk_dim);
  spec.v_dim = spec.qk_dim;
  spec.max_context = context;
  return {};
}

// rope_freqs.weight: llama 3's scaling as the converter stores it, one divisor per pair.
Status read_freq_factors(const Checkpoint& checkpoint, RopeSpec& rope) {
  const TensorInfo* tensor = checkpoint.find("rope_freqs.weight");
  if (tensor == nullptr) return {};
  const auto pairs = static_cast<std::size_t>(rope.rotary_dim) / 2;
  if (tensor->format != WeightFormat::f32 ||
      tensor->shape != std::vector<std::int64_t>{static_cast<std::int64_t>(pairs)}) {
    return bad_input(fmt::format("rope_freqs.weight must be F32 with {} entries", pairs));
  }
  rope.freq_factors.resize(pairs);
  std::memcpy(rope.freq_factors.data(), tensor->data, pairs * sizeof(float));
  for (const float factor : rope.freq_factors) {
    if (!(factor > 1e-6f && factor < 1e6f))
      return bad_input(fmt::format("rope_freqs.weight holds {}: not a divisor", factor));
  }
  return {};
}

Result<RopeSpec> read_rope(const Keys& keys, const ModelSpec& spec) {
  RopeSpec rope;
  QUIRE_TRY(dims, keys.file.integer_or(keys("rope.dimension_count"), spec.qk_dim, 1, kMaxHeadDim));
  if (dims != spec.qk_dim) {
    return bad_input(fmt::format("{} is {} for heads of {}: partial rotary is not supported here",
                                 keys("rope.dimension_count"), dims, spec.qk_dim));
  }
  QUIRE_TRY(theta, keys.file.number_or(keys("rope.freq_base"), 10000.0, 1.0 + 1e-6, kMaxReal));
  QUIRE_TRY(kind, keys.file.string_or(keys("rope.scaling.type"), "none"));
  const std::string_view factor_key =
      keys.file.has(keys("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear";
  QUIRE_TRY(factor, keys.file.number_or(keys(factor_key), 1.0, 1e-6, 1e6));
  if (kind != "none" && kind != "linear") {
    return bad_input(fmt::format("{} {} is not supported in GGUF files; none and linear are",
                                 keys("rope.scaling.type"), checkpoint::printable(kind)));
  }
  rope.rotary_dim = spec.qk_dim;
  rope.theta = theta;
  // Old files have the factor alone, which then means linear.
  const bool linear = factor != 1.0 && (kind == "linear" || !keys.file.has(keys("rope.scaling.type")));
  rope.kind = linear ? RopeKind::linear : RopeKind::plain;
  rope.factor = linear ? factor : 1.0;
  return rope;
}

// Everything but the layers; *layers receives their number.
Result<ModelSpec> read_common(const Keys& keys, const Checkpoint& checkpoint, std::int32_t* layers) {
  ModelSpec spec;
  QUIRE_TRY_STATUS(refuse_features(keys));
  QUIRE_TRY(count, keys.size("block_count", kMaxLayers));
  QUIRE_TRY_STATUS(read_sizes(keys, checkpoint, spec));
  QUIRE_TRY(eps, keys.file.number(keys("attention.layer_norm_rms_epsilon"), 0.0, 1.0));
  QUIRE_TRY(rope, read_rope(keys, spec));
  *layers = count;
  spec.source = checkpoint::Source::gguf;
  spec.norm_eps = eps;
  spec.tied = checkpoint.has_weights() && checkpoint.find("output.weight") == nullptr;
  spec.qkv_bias = checkpoint.find("blk.0.attn_q.bias") != nullptr;
  spec.o_bias = checkpoint.find("blk.0.attn_output.bias") != nullptr;
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.qk_dim));
  spec.ropes.push_back(std::move(rope));
  return spec;
}

Result<ModelSpec> read_uniform(const Checkpoint& checkpoint, std::string_view architecture) {
  const Keys keys{checkpoint.gguf(), std::string(architecture)};
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_common(keys, checkpoint, &layers));
  QUIRE_TRY(window, keys.file.integer_or(keys("attention.sliding_window"), 0, 0, kMaxContext));
  if (window != 0)
    return bad_input(fmt::format("{} is {}: not supported in GGUF {} models",
                                 keys("attention.sliding_window"), window, architecture));
  QUIRE_TRY_STATUS(read_freq_factors(checkpoint, spec.ropes[0]));
  spec.family = Family::llama;
  set_layers(spec, std::vector<bool>(static_cast<std::size_t>(layers), false), 0);
  return spec;
}

// attention.sliding_window_pattern: a period, or one flag per layer; absent: the published models' period.
Result<std::vector<bool>> read_pattern(const Keys& keys, std::int32_t layers) {
  const std::string key = keys("attention.sliding_window_pattern");
  std::vector<std::int64_t> values{kGemmaPattern};
  if (keys.file.has(key)) {
    QUIRE_TRY(given, keys.file.integers(key));
    values = given;
  }
  std::vector<bool> sliding(static_cast<std::size_t>(layers));
  const bool period = values.size() == 1;
  if ((period && (values[0] < 1 || values[0] > kMaxLayers)) || (!period && values.size() != sliding.size())) {
    return bad_input(fmt::format("{} must be a period or one flag for each of {} layers", key, layers));
  }
  for (std::size_t i = 0; i < sliding.size(); ++i) {
    sliding[i] = period ? (static_cast<std::int64_t>(i) + 1) % values[0] != 0 : values[i] != 0;
  }
  return sliding;
}

}  // namespace

Result<ModelSpec> read_llama_gguf(const Checkpoint& checkpoint) {
  QUIRE_TRY(spec, read_uniform(checkpoint, "llama"));
  spec.ropes[0].interleaved = true;
  return spec;
}

Result<ModelSpec> read_qwen3_gguf(const Checkpoint& checkpoint) {
  QUIRE_TRY(spec, read_uniform(checkpoint, "qwen3"));
  spec.qk_norm = true;
  return spec;
}

Result<ModelSpec> read_gemma3_gguf(const Checkpoint& checkpoint) {
  const Keys keys{checkpoint.gguf(), "gemma3"};
  std::int32_t layers = 0;
  QUIRE_TRY(spec, read_common(keys, checkpoint, &layers));
  QUIRE_TRY(window, keys.size("attention.sliding_window", kMaxContext));
  QUIRE_TRY(sliding, read_pattern(keys, layers));
  QUIRE_TRY(local_theta,
            keys.file.number_or(keys("rope.freq_base_swa"), kGemmaLocalTheta, 1.0 + 1e-6, kMaxReal));
  QUIRE_TRY(attention_softcap, keys.file.number_or(keys("attn_logit_softcapping"), 0.0, 0.0, kMaxReal));
  QUIRE_TRY(final_softcap, keys.file.number_or(keys("final_logit_softcapping"), 0.0, 0.0, kMaxReal));
  RopeSpec local;
  local.rotary_dim = spec.qk_dim;
  local.theta = local_theta;
  spec.ropes.push_back(std::move(local));
  spec.family = Family::gemma3;
  spec.activation = Activation::gelu_tanh;
  spec.qk_norm = true;
  spec.post_norms = true;
  spec.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden)));
  spec.attention_softcap = attention_softcap;
  spec.final_softcap = final_softcap;
  if (layers == kGemma27bLayers) {
    spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.hidden) / spec.q_heads);
  }
  set_layers(spec, sliding, window);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].rope = sliding[i] ? 1 : 0;
  return spec;
}

}  // namespace quire::model
