// quantization_config: the one kind of quantised Hugging Face folder that is read. compressed-tensors with
// format "float-quantized" as published: every linear layer's weights in e4m3 with a scale per output or per
// matrix, activations to be rounded to e4m3 per token as they come, some layers left as they were. All else
// is refused by name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

#include "base/nearest.h"
#include "checkpoint/printable.h"
#include "model/names.h"
#include "model/spec_read.h"

namespace quire::model {
namespace {

using checkpoint::JsonView;
using checkpoint::printable;

constexpr std::string_view kLegal =
    "use the 16-bit checkpoint, a GGUF file of it, or one of compressed-tensors with float-quantized weights "
    "and dynamic activations per token (FP8-dynamic)";
constexpr std::size_t kMostIgnored = std::size_t{1} << 16;

Status known_keys(const JsonView& object, std::span<const std::string_view> known) {
  for (const std::string& key : object.keys()) {
    if (!object.has(key) || std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto near = nearest(key, known);
    return bad_input(fmt::format("{}: the key {} is not supported{}", object.where(), printable(key),
                                 near.empty() ? "" : fmt::format(" (the nearest is {})", near[0])));
  }
  return {};
}

// A key that must be there, with this value.
Status require(const JsonView& object, std::string_view key, std::string_view value) {
  if (!object.has(key))
    return bad_input(fmt::format("{}: the key {} is missing, it must be {}", object.where(), key, value));
  return require_off(object, key, value);
}

using Required = std::pair<std::string_view, std::string_view>;

// The keys of `weights` and of `input_activations`, but for the strategy. What observed the ranges does not
// matter any more.
Status check_tensor_kind(const JsonView& kind, std::string_view dynamic) {
  constexpr std::array<std::string_view, 12> kKnown{
      "num_bits",        "type",     "symmetric", "dynamic",         "strategy",    "group_size",
      "block_structure", "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
  QUIRE_TRY_STATUS(known_keys(kind, kKnown));
  for (const auto& [key, value] : {Required{"num_bits", "8"}, Required{"type", "\"float\""},
                                   Required{"symmetric", "true"}, Required{"dynamic", dynamic}})
    QUIRE_TRY_STATUS(require(kind, key, value));
  for (const std::string_view key : {"group_size", "block_structure", "actorder", "scale_dtype", "zp_dtype"})
    QUIRE_TRY_STATUS(require_off(kind, key, "null"));
  return {};
}

Result<bool> read_per_row(const JsonView& weights) {
  QUIRE_TRY_STATUS(check_tensor_kind(weights, "false"));
  QUIRE_TRY(strategy, weights.string("strategy"));
  if (strategy != "channel" && strategy != "tensor")
    return bad_input(fmt::format("{}: the strategy {} is not supported; channel and tensor are",
                                 weights.where(), printable(strategy)));
  return strategy == "channel";
}

// The one group that all linear layers are in.
Result<bool> read_group(const JsonView& groups) {
  const std::vector<std::string> names = groups.keys();
  if (names.size() != 1)
    return bad_input(fmt::format("{}: {} groups are not supported, only one for all linear layers is",
                                 groups.where(), names.size()));
  QUIRE_TRY(group, groups.object(names[0]));
  constexpr std::array<std::string_view, 5> kKnown{"targets", "weights", "input_activations",
                                                   "output_activations", "format"};
  QUIRE_TRY_STATUS(known_keys(group, kKnown));
  QUIRE_TRY_STATUS(require(group, "targets", R"(["Linear"])"));
  QUIRE_TRY_STATUS(require_off(group, "output_activations", "null"));
  QUIRE_TRY_STATUS(require_off(group, "format", "\"float-quantized\""));
  QUIRE_TRY(activations, group.object("input_activations"));
  QUIRE_TRY_STATUS(check_tensor_kind(activations, "true"));
  QUIRE_TRY_STATUS(require(activations, "strategy", "\"token\""));
  QUIRE_TRY(weights, group.object("weights"));
  return read_per_row(weights);
}

// Parts of the method that may stand there unused.
Status check_unused(const JsonView& object) {
  QUIRE_TRY_STATUS(require_off(object, "kv_cache_scheme", "null"));
  QUIRE_TRY_STATUS(require_off(object, "transform_config", "{}"));
  if (object.has("sparsity_config")) {
    QUIRE_TRY(sparsity, object.object("sparsity_config"));
    const std::vector<std::string> keys = sparsity.keys();
    const bool says = std::any_of(keys.begin(), keys.end(), [&](auto& key) { return sparsity.has(key); });
    if (says) QUIRE_TRY_STATUS(require(sparsity, "format", "\"dense\""));
  }
  QUIRE_TRY(status, object.string_or("quantization_status", "compressed"));
  if (status != "compressed" && status != "frozen")
    return bad_input(fmt::format("{}: quantization_status {} is not supported; compressed and frozen are",
                                 object.where(), printable(status)));
  return {};
}

Result<QuantSpec> read_compressed_tensors(const JsonView& object) {
  constexpr std::array<std::string_view, 10> kKnown{"quant_method",
                                                    "format",
                                                    "config_groups",
                                                    "ignore",
                                                    "global_compression_ratio",
                                                    "version",
                                                    "quantization_status",
                                                    "kv_cache_scheme",
                                                    "sparsity_config",
                                                    "transform_config"};
  QUIRE_TRY_STATUS(known_keys(object, kKnown));
  QUIRE_TRY_STATUS(require(object, "format", "\"float-quantized\""));
  QUIRE_TRY_STATUS(check_unused(object));
  QUIRE_TRY(groups, object.object("config_groups"));
  QuantSpec quant;
  QUIRE_TRY(per_row, read_group(groups));
  quant.per_row = per_row;
  if (object.has("ignore")) {
    QUIRE_TRY(ignored, object.strings("ignore", kMostIgnored));
    quant.ignored = std::move(ignored);
  }
  std::sort(quant.ignored.begin(), quant.ignored.end());
  for (const std::string& name : quant.ignored) {
    if (name.starts_with("re:"))
      return bad_input(fmt::format("{}: ignore has the pattern {}: that is not supported, only names are",
                                   object.where(), printable(name)));
  }
  return quant;
}

}  // namespace

Result<std::optional<QuantSpec>> read_quant(const JsonView& config) {
  if (config.has("compression_config"))
    return bad_input(fmt::format("{}: compression_config is not supported: {}", config.where(), kLegal));
  if (!config.has("quantization_config")) return std::optional<QuantSpec>();
  std::string method = "of an unnamed method";
  if (config.is_object("quantization_config")) {
    QUIRE_TRY(object, config.object("quantization_config"));
    if (object.is_string("quant_method")) {
      QUIRE_TRY(name, object.string("quant_method"));
      if (name == "compressed-tensors") {
        QUIRE_TRY(quant, read_compressed_tensors(object));
        return std::optional<QuantSpec>(std::move(quant));
      }
      method = printable(name);
    }
  }
  return bad_input(
      fmt::format("{}: quantization_config {} is not supported: {}", config.where(), method, kLegal));
}

Status check_quant(const ModelSpec& spec) {
  if (!spec.quant) return {};
  if (spec.family != Family::llama && spec.family != Family::gemma3)
    return bad_input(
        fmt::format("{}: quantization_config compressed-tensors is not supported for this "
                    "architecture: use the 16-bit checkpoint",
                    spec.architecture));
  ModelSpec all = spec;
  all.quant->ignored.clear();
  all.tied = false;
  std::set<std::string, std::less<>> modules;
  for (const ExpectedWeight& weight : expected_weights(all))
    if (weight.part == WeightPart::fp8) modules.emplace(module_name(weight.name));
  for (const std::string& name : spec.quant->ignored) {
    if (modules.contains(name)) continue;
    const std::vector<std::string_view> legal(modules.begin(), modules.end());
    const auto near = nearest(name, legal);
    return bad_input(fmt::format(
        "{}: quantization_config ignores {}, which is no linear layer of this model{}", spec.architecture,
        printable(name), near.empty() ? "" : fmt::format(" (the nearest is {})", near[0])));
  }
  if (spec.tied && !is_quant_ignored(spec, "lm_head"))
    return bad_input(
        fmt::format("{}: tie_word_embeddings makes the output matrix the embedding, which is "
                    "not quantised: quantization_config must have lm_head in ignore",
                    spec.architecture));
  return {};
}

}  // namespace quire::model
