#include "model/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace quire::model {
namespace {

// "{e}" stands for the expert. Names of layers follow "model.layers.N." and "blk.N.". An empty name: that
// file kind has no such tensor (yet).
struct NameLine {
  WeightId id;
  std::string_view label;
  std::string_view huggingface;
  std::string_view gguf;
};
constexpr std::array kNames{
    NameLine{WeightId::embed, "embed", "model.embed_tokens.weight", "token_embd.weight"},
    NameLine{WeightId::final_norm, "final_norm", "model.norm.weight", "output_norm.weight"},
    NameLine{WeightId::lm_head, "lm_head", "lm_head.weight", "output.weight"},
    NameLine{WeightId::attn_norm, "attn_norm", "input_layernorm.weight", "attn_norm.weight"},
    NameLine{WeightId::post_attn_norm, "post_attn_norm", "post_attention_layernorm.weight",
             "post_attention_norm.weight"},
    NameLine{WeightId::ffn_norm, "ffn_norm", "post_attention_layernorm.weight", "ffn_norm.weight"},
    NameLine{WeightId::post_ffn_norm, "post_ffn_norm", "post_feedforward_layernorm.weight",
             "post_ffw_norm.weight"},
    NameLine{WeightId::q, "q", "self_attn.q_proj.weight", "attn_q.weight"},
    NameLine{WeightId::k, "k", "self_attn.k_proj.weight", "attn_k.weight"},
    NameLine{WeightId::v, "v", "self_attn.v_proj.weight", "attn_v.weight"},
    NameLine{WeightId::o, "o", "self_attn.o_proj.weight", "attn_output.weight"},
    NameLine{WeightId::q_bias, "q_bias", "self_attn.q_proj.bias", "attn_q.bias"},
    NameLine{WeightId::k_bias, "k_bias", "self_attn.k_proj.bias", "attn_k.bias"},
    NameLine{WeightId::v_bias, "v_bias", "self_attn.v_proj.bias", "attn_v.bias"},
    NameLine{WeightId::o_bias, "o_bias", "self_attn.o_proj.bias", "attn_output.bias"},
    NameLine{WeightId::q_norm, "q_norm", "self_attn.q_norm.weight", "attn_q_norm.weight"},
    NameLine{WeightId::k_norm, "k_norm", "self_attn.k_norm.weight", "attn_k_norm.weight"},
    NameLine{WeightId::sinks, "sinks", "self_attn.sinks", "attn_sinks.weight"},
    NameLine{WeightId::q_a, "q_a", "self_attn.q_a_proj.weight", ""},
    NameLine{WeightId::q_a_norm, "q_a_norm", "self_attn.q_a_layernorm.weight", ""},
    NameLine{WeightId::q_b, "q_b", "self_attn.q_b_proj.weight", ""},
    NameLine{WeightId::kv_a, "kv_a", "self_attn.kv_a_proj_with_mqa.weight", ""},
    NameLine{WeightId::kv_a_norm, "kv_a_norm", "self_attn.kv_a_layernorm.weight", ""},
    NameLine{WeightId::kv_b, "kv_b", "self_attn.kv_b_proj.weight", ""},
    NameLine{WeightId::gate, "gate", "mlp.gate_proj.weight", "ffn_gate.weight"},
    NameLine{WeightId::up, "up", "mlp.up_proj.weight", "ffn_up.weight"},
    NameLine{WeightId::down, "down", "mlp.down_proj.weight", "ffn_down.weight"},
    NameLine{WeightId::router, "router", "mlp.gate.weight", ""},
    NameLine{WeightId::router_bias, "router_bias", "mlp.router.bias", ""},
    NameLine{WeightId::router_correction, "router_correction", "mlp.gate.e_score_correction_bias", ""},
    NameLine{WeightId::experts_gate_up, "experts_gate_up", "mlp.experts.gate_up_proj", ""},
    NameLine{WeightId::experts_gate_up_bias, "experts_gate_up_bias", "mlp.experts.gate_up_proj_bias", ""},
    NameLine{WeightId::experts_down, "experts_down", "mlp.experts.down_proj", ""},
    NameLine{WeightId::experts_down_bias, "experts_down_bias", "mlp.experts.down_proj_bias", ""},
    NameLine{WeightId::expert_gate, "expert_gate", "mlp.experts.{e}.gate_proj.weight", ""},
    NameLine{WeightId::expert_up, "expert_up", "mlp.experts.{e}.up_proj.weight", ""},
    NameLine{WeightId::expert_down, "expert_down", "mlp.experts.{e}.down_proj.weight", ""},
    NameLine{WeightId::shared_gate, "shared_gate", "mlp.shared_experts.gate_proj.weight", ""},
    NameLine{WeightId::shared_up, "shared_up", "mlp.shared_experts.up_proj.weight", ""},
    NameLine{WeightId::shared_down, "shared_down", "mlp.shared_experts.down_proj.weight", ""},
};

constexpr bool in_enum_order() {
  for (std::size_t index = 0; index < kNames.size(); ++index) {
    if (static_cast<std::size_t>(kNames[index].id) != index) return false;
  }
  return true;
}
static_assert(in_enum_order());

const NameLine& line_of(WeightId id) {
  const auto index = static_cast<std::size_t>(id);
  QUIRE_CHECK(index < kNames.size(), "weight id {}", index);
  return kNames[index];
}

// Two names depend on the family.
std::string_view huggingface_name(const ModelSpec& spec, const NameLine& line) {
  if (line.id == WeightId::ffn_norm && spec.post_norms) return "pre_feedforward_layernorm.weight";
  if (line.id == WeightId::router && spec.family == Family::gpt_oss) return "mlp.router.weight";
  return line.huggingface;
}

// Matrices of linear layers that quantisation stores in another way.
bool is_linear(WeightId id) {
  switch (id) {
    case WeightId::lm_head:
    case WeightId::q:
    case WeightId::k:
    case WeightId::v:
    case WeightId::o:
    case WeightId::gate:
    case WeightId::up:
    case WeightId::down:
      return true;
    default:
      return false;
  }
}

// Collects the expected tensors of one spec.
class Lister {
 public:
  explicit Lister(const ModelSpec& spec) : spec_(spec) {}

  std::vector<ExpectedWeight> list() {
    add(WeightId::embed, {spec_.vocab, spec_.hidden});
    add(WeightId::final_norm, {spec_.hidden});
    if (!spec_.tied) add(WeightId::lm_head, {spec_.vocab, spec_.hidden});
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      layer_ = static_cast<std::int32_t>(i);
      norms();
      spec_.latent ? latent() : attention();
      spec_.layers[i].moe ? experts() : dense();
    }
    return std::move(out_);
  }

 private:
  void add(WeightId id, std::vector<std::int64_t> shape, std::int32_t expert = -1) {
    std::string name = weight_name(spec_, id, layer_, expert);
    const bool fp8 = spec_.quant && is_linear(id) && !is_quant_ignored(spec_, module_name(name));
    if (!fp8) return out_.push_back({id, layer_, expert, std::move(name), std::move(shape)});
    std::vector<std::int64_t> scales{1};
    if (spec_.quant->per_row) scales = {shape[0], 1};
    out_.push_back({id, layer_, expert, name, std::move(shape), WeightPart::fp8});
    out_.push_back({id, layer_, expert, name + "_scale", std::move(scales), WeightPart::fp8_scale});
  }
  void norms() {
    add(WeightId::attn_norm, {spec_.hidden});
    add(WeightId::ffn_norm, {spec_.hidden});
    if (!spec_.post_norms) return;
    add(WeightId::post_attn_norm, {spec_.hidden});
    add(WeightId::post_ffn_norm, {spec_.hidden});
  }
  void attention() {
    const std::int64_t q_rows = std::int64_t{spec_.q_heads} * spec_.qk_dim;
    const std::int64_t k_rows = std::int64_t{spec_.kv_heads} * spec_.qk_dim;
    const std::int64_t v_rows = std::int64_t{spec_.kv_heads} * spec_.v_dim;
    add(WeightId::q, {q_rows, spec_.hidden});
    add(WeightId::k, {k_rows, spec_.hidden});
    add(WeightId::v, {v_rows, spec_.hidden});
    add(WeightId::o, {spec_.hidden, std::int64_t{spec_.q_heads} * spec_.v_dim});
    if (spec_.qkv_bias) {
      add(WeightId::q_bias, {q_rows});
      add(WeightId::k_bias, {k_rows});
      add(WeightId::v_bias, {v_rows});
    }
    if (spec_.o_bias) add(WeightId::o_bias, {spec_.hidden});
    if (spec_.qk_norm) {
      add(WeightId::q_norm, {spec_.qk_dim});
      add(WeightId::k_norm, {spec_.qk_dim});
    }
    if (spec_.sinks) add(WeightId::sinks, {spec_.q_heads});
  }
  void latent() {
    const LatentSpec& latent = *spec_.latent;
    const std::int64_t q_rows = std::int64_t{spec_.q_heads} * spec_.qk_dim;
    if (latent.q_lora_rank == 0) {
      add(WeightId::q, {q_rows, spec_.hidden});
    } else {
      add(WeightId::q_a, {latent.q_lora_rank, spec_.hidden});
      add(WeightId::q_a_norm, {latent.q_lora_rank});
      add(WeightId::q_b, {q_rows, latent.q_lora_rank});
    }
    add(WeightId::kv_a, {std::int64_t{latent.kv_lora_rank} + latent.rope_dim, spec_.hidden});
    add(WeightId::kv_a_norm, {latent.kv_lora_rank});
    add(WeightId::kv_b,
        {std::int64_t{spec_.q_heads} * (latent.nope_dim + latent.v_dim), latent.kv_lora_rank});
    add(WeightId::o, {spec_.hidden, std::int64_t{spec_.q_heads} * latent.v_dim});
  }
  void dense() {
    add(WeightId::gate, {spec_.intermediate, spec_.hidden});
    add(WeightId::up, {spec_.intermediate, spec_.hidden});
    add(WeightId::down, {spec_.hidden, spec_.intermediate});
  }
  void experts() {
    const MoeSpec& moe = *spec_.moe;
    const std::int64_t wide = moe.intermediate;
    add(WeightId::router, {moe.experts, spec_.hidden});
    if (spec_.family == Family::gpt_oss) {
      if (moe.biases) add(WeightId::router_bias, {moe.experts});
      add(WeightId::experts_gate_up, {moe.experts, spec_.hidden, 2 * wide});
      if (moe.biases) add(WeightId::experts_gate_up_bias, {moe.experts, 2 * wide});
      add(WeightId::experts_down, {moe.experts, wide, spec_.hidden});
      if (moe.biases) add(WeightId::experts_down_bias, {moe.experts, spec_.hidden});
      return;
    }
    add(WeightId::router_correction, {moe.experts});
    for (std::int32_t expert = 0; expert < moe.experts; ++expert) {
      add(WeightId::expert_gate, {wide, spec_.hidden}, expert);
      add(WeightId::expert_up, {wide, spec_.hidden}, expert);
      add(WeightId::expert_down, {spec_.hidden, wide}, expert);
    }
    if (moe.shared_intermediate == 0) return;
    add(WeightId::shared_gate, {moe.shared_intermediate, spec_.hidden});
    add(WeightId::shared_up, {moe.shared_intermediate, spec_.hidden});
    add(WeightId::shared_down, {spec_.hidden, moe.shared_intermediate});
  }

  const ModelSpec& spec_;
  std::int32_t layer_ = -1;
  std::vector<ExpectedWeight> out_;
};

// The N of "model.layers.N.", or -1.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return -1;
  name.remove_prefix(kPrefix.size());
  std::int64_t layer = 0;
  std::size_t digits = 0;
  while (digits < name.size() && digits < 9 && name[digits] >= '0' && name[digits] <= '9') {
    layer = layer * 10 + (name[digits++] - '0');
  }
  return digits > 0 && digits < name.size() && name[digits] == '.' ? layer : -1;
}

}  // namespace

std::string_view to_string(WeightId id) { return line_of(id).label; }

std::string weight_name(const ModelSpec& spec, WeightId id, std::int32_t layer, std::int32_t expert) {
  const NameLine& line = line_of(id);
  const bool gguf = spec.source == checkpoint::Source::gguf;
  const bool per_layer = id > WeightId::lm_head;
  std::string name(gguf ? line.gguf : huggingface_name(spec, line));
  QUIRE_CHECK(!name.empty(), "no GGUF name for {}", line.label);
  QUIRE_CHECK(per_layer == (layer >= 0), "{} with layer {}", line.label, layer);
  if (const std::size_t place = name.find("{e}"); place != std::string::npos) {
    QUIRE_CHECK(expert >= 0, "{} with expert {}", line.label, expert);
    name.replace(place, 3, fmt::format("{}", expert));
  }
  if (!per_layer) return name;
  return fmt::format("{}.{}.{}", gguf ? "blk" : "model.layers", layer, name);
}

std::string_view module_name(std::string_view weight_name) {
  constexpr std::string_view kEnd = ".weight";
  if (weight_name.ends_with(kEnd)) weight_name.remove_suffix(kEnd.size());
  return weight_name;
}

bool is_quant_ignored(const ModelSpec& spec, std::string_view module) {
  const std::vector<std::string>& names = spec.quant->ignored;
  return std::binary_search(names.begin(), names.end(), module);
}

std::vector<ExpectedWeight> expected_weights(const ModelSpec& spec) { return Lister(spec).list(); }

bool is_ignored_tensor(const ModelSpec& spec, std::string_view name) {
  if (spec.source == checkpoint::Source::gguf) return name == "rope_freqs.weight";
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  if (spec.tied && name == "lm_head.weight") return true;
  return spec.family == Family::deepseek_v3 &&
         layer_of(name) >= static_cast<std::int64_t>(spec.layers.size());
}

}  // namespace quire::model
