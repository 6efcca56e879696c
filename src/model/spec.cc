#include "model/spec.h"

#include <fmt/format.h>

#include <array>

#include "base/nearest.h"
#include "checkpoint/printable.h"
#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::JsonView;
using checkpoint::printable;
using checkpoint::Source;

constexpr std::array kArchitectures{
    ArchitectureLine{"LlamaForCausalLM", read_llama_config},
    ArchitectureLine{"MistralForCausalLM", read_mistral_config},
    ArchitectureLine{"Qwen2ForCausalLM", read_qwen2_config},
    ArchitectureLine{"Qwen3ForCausalLM", read_qwen3_config},
    ArchitectureLine{"Gemma3ForCausalLM", read_gemma3_config},
    ArchitectureLine{"GptOssForCausalLM", read_gpt_oss_config},
    ArchitectureLine{"DeepseekV3ForCausalLM", read_deepseek_v3_config},
    ArchitectureLine{"llama", nullptr, read_llama_gguf},
    ArchitectureLine{"qwen3", nullptr, read_qwen3_gguf},
    ArchitectureLine{"gemma3", nullptr, read_gemma3_gguf},
};

Error unsupported(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ArchitectureLine& line : kArchitectures) names.push_back(line.name);
  const auto near = nearest(name, names);
  return bad_input(fmt::format("the architecture {} is not supported{}; supported are {}", printable(name),
                               near.empty() ? "" : fmt::format(" (the nearest is {})", near[0]),
                               supported_architectures()));
}

std::string list_layers(const std::vector<std::int32_t>& layers) {
  std::string out;
  for (const std::int32_t layer : layers) out += fmt::format("{}{}", out.empty() ? "" : ",", layer);
  return out;
}

void print_flags(const ModelSpec& spec, std::string& out) {
  const std::array<std::pair<bool, std::string_view>, 7> flags{{
      {spec.norm_plus_one, "norms multiply by 1 + w"},
      {spec.tied, "tied output"},
      {spec.qkv_bias, "bias on q, k, v"},
      {spec.o_bias, "bias on o"},
      {spec.qk_norm, "norms on q and k"},
      {spec.post_norms, "norms after the blocks"},
      {spec.sinks, "sinks"},
  }};
  for (const auto& [set, text] : flags) {
    if (set) out += fmt::format("{}\n", text);
  }
}

}  // namespace

std::span<const ArchitectureLine> architecture_table() { return kArchitectures; }

std::string supported_architectures() {
  std::string configs;
  std::string ggufs;
  for (const ArchitectureLine& line : kArchitectures) {
    std::string& list = line.from_config != nullptr ? configs : ggufs;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", line.name);
  }
  return configs + "; GGUF: " + ggufs;
}

std::string_view to_string(Family family) {
  switch (family) {
    case Family::llama:
      return "llama";
    case Family::gemma3:
      return "gemma3";
    case Family::gpt_oss:
      return "gpt_oss";
    case Family::deepseek_v3:
      return "deepseek_v3";
  }
  return "unknown";
}

std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::swiglu_clamped:
      return "swiglu_clamped";
  }
  return "unknown";
}

std::string_view to_string(Routing routing) {
  switch (routing) {
    case Routing::softmax_chosen:
      return "softmax over the chosen";
    case Routing::sigmoid_grouped:
      return "sigmoid with groups";
  }
  return "unknown";
}

std::string to_string(const ModelSpec& spec) {
  std::string out = fmt::format("{} ({} forward, {})\n", spec.architecture, to_string(spec.family),
                                quire::to_string(spec.dtype));
  out += fmt::format("vocab {} hidden {} intermediate {} layers {} context {}\n", spec.vocab, spec.hidden,
                     spec.intermediate, spec.layers.size(), spec.max_context);
  out += fmt::format("heads {}/{} of {} and {}, scale {:.9g}, epsilon {:.6g}, {}, embeddings x {:.9g}\n",
                     spec.q_heads, spec.kv_heads, spec.qk_dim, spec.v_dim, spec.attention_scale,
                     spec.norm_eps, to_string(spec.activation), spec.embed_scale);
  if (spec.activation == Activation::swiglu_clamped) {
    out += fmt::format("swiglu alpha {} limit {}\n", spec.swiglu_alpha, spec.swiglu_limit);
  }
  if (spec.attention_softcap > 0) out += fmt::format("attention soft cap {}\n", spec.attention_softcap);
  if (spec.final_softcap > 0) out += fmt::format("final soft cap {}\n", spec.final_softcap);
  print_flags(spec, out);
  if (spec.latent) {
    const LatentSpec& latent = *spec.latent;
    out += fmt::format("latent q {} kv {} nope {} rope {} v {} epsilon {:.6g}\n", latent.q_lora_rank,
                       latent.kv_lora_rank, latent.nope_dim, latent.rope_dim, latent.v_dim, latent.norm_eps);
  }
  if (spec.moe) {
    const MoeSpec& moe = *spec.moe;
    out += fmt::format("experts {} of {}, {} wide, {}, groups {} of {}, {}scale {}, shared {}{}\n", moe.top_k,
                       moe.experts, moe.intermediate, to_string(moe.routing), moe.top_groups, moe.groups,
                       moe.normalise ? "normalised, " : "", moe.scale, moe.shared_intermediate,
                       moe.biases ? ", biases" : "");
  }
  if (spec.quant) {
    out += fmt::format("linear layers in e4m3, a scale per {}, {} left out\n",
                       spec.quant->per_row ? "output" : "matrix", spec.quant->ignored.size());
  }
  for (std::size_t i = 0; i < spec.ropes.size(); ++i)
    out += fmt::format("rope {}: {}\n", i, to_string(spec.ropes[i]));
  for (const GroupSpec& group : spec.groups) {
    out += fmt::format("group {}: {} {} layers {}\n", group.name, attention::to_string(group.mask),
                       group.window, list_layers(group.layers));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    out +=
        fmt::format("layer {}: rope {}{}\n", i, spec.layers[i].rope, spec.layers[i].moe ? ", experts" : "");
  }
  return out;
}

KvLayerShape kv_layer_shape(const ModelSpec& spec) {
  if (spec.latent) {
    return KvLayerShape{1, spec.latent->kv_lora_rank + spec.latent->rope_dim, spec.latent->kv_lora_rank,
                        true};
  }
  return KvLayerShape{spec.kv_heads, spec.qk_dim, spec.v_dim};
}

Result<ModelSpec> read_config_spec(const JsonView& config) {
  if (!config.has("architectures")) {
    return bad_input(fmt::format("{}: the key architectures is missing; supported are {}", config.where(),
                                 supported_architectures()));
  }
  QUIRE_TRY(names, config.strings("architectures", 16));
  if (names.size() != 1) {
    return bad_input(
        fmt::format("{}: architectures must name one architecture, found {}", config.where(), names.size()));
  }
  for (const ArchitectureLine& line : kArchitectures) {
    if (line.from_config == nullptr || line.name != names[0]) continue;
    QUIRE_TRY(spec, line.from_config(config));
    spec.architecture = names[0];
    return checked(std::move(spec));
  }
  return unsupported(names[0]);
}

Result<ModelSpec> read_spec(const Checkpoint& checkpoint) {
  if (checkpoint.source() == Source::huggingface) return read_config_spec(checkpoint.config());
  QUIRE_TRY(name, checkpoint.gguf().string("general.architecture"));
  for (const ArchitectureLine& line : kArchitectures) {
    if (line.from_gguf == nullptr || line.name != name) continue;
    QUIRE_TRY(spec, line.from_gguf(checkpoint));
    spec.architecture = std::string(name);
    return checked(std::move(spec));
  }
  return unsupported(name);
}

}  // namespace quire::model
