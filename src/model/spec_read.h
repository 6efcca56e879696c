// What the readers of ModelSpec share: bounds, the table of architectures, pieces of config.json that
// several families have. Private to model/spec*.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/json.h"
#include "model/spec.h"

namespace quire::model {

// Sizes over these are refused: they bound what any later product or table can reach.
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 30;
inline constexpr double kMaxReal = 1e12;

// One line per architecture that Quire runs. Exactly one of the readers is set.
struct ArchitectureLine {
  std::string_view name;
  Result<ModelSpec> (*from_config)(const checkpoint::JsonView& config) = nullptr;
  Result<ModelSpec> (*from_gguf)(const checkpoint::Checkpoint& checkpoint) = nullptr;
};
std::span<const ArchitectureLine> architecture_table();

// Readers, by file.
Result<ModelSpec> read_llama_config(const checkpoint::JsonView& config);  // spec_llama.cc
Result<ModelSpec> read_mistral_config(const checkpoint::JsonView& config);
Result<ModelSpec> read_qwen2_config(const checkpoint::JsonView& config);
Result<ModelSpec> read_qwen3_config(const checkpoint::JsonView& config);
Result<ModelSpec> read_gemma3_config(const checkpoint::JsonView& config);   // spec_gemma3.cc
Result<ModelSpec> read_gpt_oss_config(const checkpoint::JsonView& config);  // spec_moe.cc
Result<ModelSpec> read_deepseek_v3_config(const checkpoint::JsonView& config);
Result<ModelSpec> read_llama_gguf(const checkpoint::Checkpoint& checkpoint);  // spec_gguf.cc
Result<ModelSpec> read_qwen3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelSpec> read_gemma3_gguf(const checkpoint::Checkpoint& checkpoint);

// What a family takes for keys that its published configs leave out.
struct ConfigDefaults {
  double theta = 10000.0;
  bool tied = false;
  std::string_view activation_key = "hidden_act";
};

// The keys that every family has, and the refusal of those that none has: sizes, epsilon, dtype, tied
// weights. Leaves ropes, groups and layers empty; layers_out receives their number.
Result<ModelSpec> read_common(const checkpoint::JsonView& config, const ConfigDefaults& defaults,
                              std::int32_t* layers_out);

// Refuses a key that is set to anything but `off` (a value spelled as in JSON) or null.
Status require_off(const checkpoint::JsonView& config, std::string_view key, std::string_view off);

// A rope from `rope_parameters`, or from `rope_theta` and `rope_scaling` as published configs have it.
// mscale_all_dim of deepseek configs goes to *mscale_all_dim, 0 when absent.
Result<RopeSpec> read_rope(const checkpoint::JsonView& config, const ModelSpec& spec,
                           const ConfigDefaults& defaults, double* mscale_all_dim);
// The same from one object of `rope_parameters`.
Result<RopeSpec> read_rope_object(const checkpoint::JsonView& object, double theta, const ModelSpec& spec,
                                  double* mscale_all_dim);

// True per layer that slides: from `layer_types`, else all as `fallback` says.
Result<std::vector<bool>> read_sliding(const checkpoint::JsonView& config, std::int32_t layers,
                                       bool (*fallback)(std::int32_t layer, std::int64_t argument),
                                       std::int64_t argument);

// Fills groups and layers: sliding layers form "window", others "full" ("latent" in latent models).
void set_layers(ModelSpec& spec, const std::vector<bool>& sliding, std::int32_t window);

// quantization_config, or nothing where there is none.
Result<std::optional<QuantSpec>> read_quant(const checkpoint::JsonView& config);  // spec_quant.cc
// Whether the finished spec can be quantised as it says: the family, names that are ignored, a tied output.
Status check_quant(const ModelSpec& spec);

// Relations that hold for every family; the last step of every reader.
Result<ModelSpec> checked(ModelSpec spec);

}  // namespace quire::model
