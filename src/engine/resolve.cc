#include "engine/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "attention/other_names.h"
#include "base/nearest.h"
#include "engine/limits.h"
#include "ops/ops.h"

namespace quire::engine {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 4> kDTypeNames = {"auto", "f32", "bf16", "f16"};
constexpr std::array<std::string_view, 5> kKvNames = {"auto", "f32", "bf16", "f16", "fp8_e4m3"};
constexpr std::array<std::string_view, 4> kLevelNames = {"none", "run_to_run", "batch_invariant",
                                                         "schedule_invariant"};
constexpr std::array<std::string_view, 2> kOrderNames = {"page_first", "layer_first"};
constexpr std::array<std::string_view, 2> kSwitchNames = {"on", "off"};
constexpr std::array<std::string_view, 2> kLoadNames = {"auto", "dummy"};

bool one_of(std::string_view name, Names names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Error unknown(std::string_view what, std::string_view flag, std::string_view value, Names names) {
  return bad_input(
      fmt::format("{} \"{}\" of --{} is not known{}", what, value, flag, did_you_mean(value, names)));
}

// value 0 is auto; anything else must lie in [1, most].
Status check_range(std::string_view what, std::string_view flag, std::int64_t value, std::int64_t most) {
  if (value < 0) return bad_input(fmt::format("{} {} is below 1: use --{} 1 or more", what, value, flag));
  if (value > most)
    return bad_input(fmt::format("{0} {1} is over {2}: use --{3} {2} or less", what, value, most, flag));
  return {};
}

Status check_names(const Options& options, bool cpu) {
  if (!one_of(options.dtype, kDTypeNames))
    return unknown("compute type", "dtype", options.dtype, kDTypeNames);
  if (cpu && options.dtype != "auto" && options.dtype != "f32")
    return bad_input(fmt::format("the CPU computes in f32, not {}: use --dtype f32", options.dtype));
  if (!cpu && options.dtype != "auto" && options.dtype != "bf16")
    return bad_input(fmt::format(
        "the GPU's operations of this build compute in bf16, not {}: use --dtype bf16", options.dtype));
  if (!one_of(options.kv_dtype, kKvNames)) return unknown("KV type", "kv-dtype", options.kv_dtype, kKvNames);
  if (!options.deterministic.empty() && !one_of(options.deterministic, kLevelNames))
    return unknown("determinism level", "deterministic", options.deterministic, kLevelNames);
  if (!options.page_order.empty() && !one_of(options.page_order, kOrderNames))
    return unknown("page order", "page-order", options.page_order, kOrderNames);
  if (!one_of(options.load_format, kLoadNames))
    return unknown("load format", "load-format", options.load_format, kLoadNames);
  if (!options.prefix_cache.empty() && !one_of(options.prefix_cache, kSwitchNames))
    return unknown("value", "prefix-cache", options.prefix_cache, kSwitchNames);
  if (!options.cache_eviction.empty() && !one_of(options.cache_eviction, kv::kEvictionNames))
    return unknown("order", "cache-eviction", options.cache_eviction, kv::kEvictionNames);
  if (!options.schedule.empty() && !one_of(options.schedule, scheduler::kPolicyNames))
    return unknown("policy", "schedule", options.schedule, scheduler::kPolicyNames);
  if (!(options.target_itl_ms >= 0.0) || options.target_itl_ms > 1e6)
    return bad_input(
        fmt::format("target of {} ms between tokens is outside 0 to 1000000: use --target-itl 0 for "
                    "none",
                    options.target_itl_ms));
  if (options.kv_memory_bytes < 0)
    return bad_input(
        fmt::format("KV memory {} is negative: use --kv-memory auto or a size", options.kv_memory_bytes));
  if (!(options.kv_scale >= 0.0f) || options.kv_scale > 1e30f)
    return bad_input(
        fmt::format("KV scale {} is not a positive finite number: use --kv-scale 1", options.kv_scale));
  if (options.kv_scale > 0.0f && options.kv_dtype != "fp8_e4m3")
    return bad_input(
        fmt::format("--kv-scale is for fp8 KV and this run has KV type {}: leave it out or use "
                    "--kv-dtype fp8_e4m3",
                    options.kv_dtype));
  return {};
}

Status check_backends(const Options& options, std::span<const attention::Backend> table) {
  std::vector<std::string_view> names;
  for (const attention::Backend& row : table) names.push_back(row.name);
  const auto check = [&](std::string_view flag, std::string_view name) -> Status {
    if (name.empty() || one_of(name, names)) return {};
    Error error = unknown("attention backend", flag, name, names);
    error.message += attention::name_elsewhere(name);
    return error;
  };
  QUIRE_TRY_STATUS(check("attention-backend", options.attention_backend));
  QUIRE_TRY_STATUS(check("prefill-attention-backend", options.prefill_attention_backend));
  QUIRE_TRY_STATUS(check("decode-attention-backend", options.decode_attention_backend));
  for (const auto& [call, name] : options.attention) QUIRE_TRY_STATUS(check("attention", name));
  return {};
}

class Resolver {
 public:
  Resolver(const Options& options, const model::ModelSpec& model, const platform::DeviceInfo& device,
           std::span<const attention::Backend> table)
      : options_(options), model_(model), device_(device), ops_(ops::ops_info(device)), table_(table) {}

  Result<EngineSpec> run() {
    QUIRE_TRY_STATUS(check_options(options_, device_, table_));
    QUIRE_TRY_STATUS(limits());
    QUIRE_TRY_STATUS(sharing());
    QUIRE_TRY_STATUS(level());
    QUIRE_TRY_STATUS(groups());
    QUIRE_TRY_STATUS(calls());
    return std::move(spec_);
  }

 private:
  bool cpu() const { return device_.kind == platform::Kind::cpu; }
  template <class... T>
  void because(fmt::format_string<T...> format, T&&... values) {
    spec_.trace.push_back(fmt::format(format, std::forward<T>(values)...));
  }
  Status limits();
  Status context();
  Status sharing();
  Status level();
  Status groups();
  Status calls();
  Result<attention::Selection> try_scale(KvScaleKind scale);

  const Options& options_;
  const model::ModelSpec& model_;
  const platform::DeviceInfo& device_;
  const ops::OpsInfo ops_;
  std::span<const attention::Backend> table_;
  DType kv_type_ = DType::bf16;
  EngineSpec spec_;
};

Status Resolver::context() {
  const std::int64_t longest = model_.max_context;
  if (options_.max_context < 0) return check_range("context", "max-context", options_.max_context, longest);
  if (options_.max_context > longest)
    return bad_input(fmt::format("context {0} is over the model's {1}: use --max-context {1} or less",
                                 options_.max_context, longest));
  spec_.max_context = options_.max_context > 0 ? options_.max_context : static_cast<std::int32_t>(longest);
  because("max context {}: {}", spec_.max_context, options_.max_context > 0 ? "asked for" : "the model's");
  return {};
}

Status Resolver::limits() {
  QUIRE_TRY_STATUS(check_range("page size", "page-size", options_.page_size, attention::kMaxPageSize));
  QUIRE_TRY_STATUS(check_range("running sequences", "max-running", options_.max_running, kMaxRunning));
  QUIRE_TRY_STATUS(check_range("chunk tokens", "chunk-tokens", options_.chunk_tokens, kMaxChunkTokens));
  QUIRE_TRY(threads, plan_threads(options_, cpu() ? device_.cores : 1));
  QUIRE_TRY_STATUS(context());
  spec_.platform = device_.kind;
  spec_.threads = threads;
  because("compute threads {}: {}", threads.compute,
          options_.threads > 0 ? "asked for"
          : cpu()              ? "the hardware threads this process may use"
                               : "the GPU computes");
  spec_.max_running = options_.max_running > 0 ? options_.max_running
                      : cpu()                  ? kAutoRunningCpu
                                               : kAutoRunningGpu;
  because("running sequences {}: {}", spec_.max_running,
          options_.max_running > 0 ? "asked for" : "auto, the platform's default");
  const std::int32_t chunk = cpu() ? kAutoChunkCpu : kAutoChunkGpu;
  spec_.chunk_tokens = options_.chunk_tokens > 0 ? options_.chunk_tokens : std::min(chunk, spec_.max_context);
  because("chunk {} prompt tokens: {}", spec_.chunk_tokens,
          options_.chunk_tokens > 0 ? "asked for" : "auto, the platform's default");
  spec_.kv_memory_bytes = options_.kv_memory_bytes;
  spec_.graphs = options_.graphs;
  spec_.overlap = options_.overlap;
  spec_.dummy = options_.load_format == "dummy";
  if (spec_.dummy) because("random weights: load format dummy asked for");
  because("decode graphs {}, overlap {}: asked for or default", spec_.graphs ? "on" : "off",
          spec_.overlap ? "on" : "off");
  return {};
}

// The prefix cache and the order of requests.
Status Resolver::sharing() {
  QUIRE_TRY_STATUS(check_range("waiting requests", "max-waiting", options_.max_waiting, kMaxWaiting));
  const auto position = [](const std::string& name, Names names) {
    const auto at = std::find(names.begin(), names.end(), name);
    return name.empty() ? 0 : static_cast<int>(at - names.begin());
  };
  spec_.prefix_cache = options_.prefix_cache != "off";
  spec_.eviction = static_cast<kv::EvictionPolicy>(position(options_.cache_eviction, kv::kEvictionNames));
  spec_.schedule = static_cast<scheduler::Policy>(position(options_.schedule, scheduler::kPolicyNames));
  spec_.target_step_us = static_cast<std::int64_t>(options_.target_itl_ms * 1000.0);
  spec_.max_waiting =
      options_.max_waiting > 0 ? options_.max_waiting : static_cast<std::int32_t>(kMaxWaiting);
  because("prefix cache {}: {}", spec_.prefix_cache ? "on" : "off",
          options_.prefix_cache.empty() ? "the default" : "asked for");
  if (spec_.prefix_cache)
    because("hits inside a page copy {} tokens or more, eviction {}", kCopyTokens,
            kv::kEvictionNames[static_cast<std::size_t>(spec_.eviction)]);
  because("schedule {}: {}", scheduler::kPolicyNames[static_cast<std::size_t>(spec_.schedule)],
          options_.schedule.empty() ? "the default" : "asked for");
  return {};
}

Status Resolver::level() {
  if (!options_.deterministic.empty()) {
    const auto at = std::find(kLevelNames.begin(), kLevelNames.end(), options_.deterministic);
    spec_.required = static_cast<Determinism>(at - kLevelNames.begin());
    spec_.level = spec_.required;
    because("determinism at least {}: asked for", *at);
  } else {
    spec_.level = cpu() ? Determinism::schedule_invariant : Determinism::run_to_run;
    because("determinism {} where rows and ops allow it: the platform's default",
            kLevelNames[static_cast<std::size_t>(spec_.level)]);
  }
  if (ops_.determinism < spec_.required)
    return bad_input(
        fmt::format("the operations of {} are {} and this run asks for {}: use --deterministic {}", ops_.name,
                    attention::to_string(ops_.determinism), attention::to_string(spec_.required),
                    attention::to_string(ops_.determinism)));
  // The dense form of a latent prefill merges parts in float32, which is the CPU's compute type only.
  if (!cpu() && model_.latent) {
    spec_.level = Determinism::schedule_invariant;
    because("latent attention absorbed in prefill too: its dense form is for float32");
  }
  return {};
}

Status Resolver::groups() {
  spec_.compute = cpu() ? DType::f32 : DType::bf16;
  because("compute type {}: {}", to_string(spec_.compute),
          options_.dtype != "auto" ? "asked for"
          : cpu()                  ? "the CPU computes in f32"
                                   : "what the GPU's operations of this build take");
  kv_type_ = options_.kv_dtype == "auto" ? DType::bf16 : *dtype_from_string(options_.kv_dtype);
  because("KV type {}: {}", to_string(kv_type_), options_.kv_dtype == "auto" ? "auto" : "asked for");
  spec_.groups = model::kv_groups(model_);
  if (spec_.groups.size() > static_cast<std::size_t>(ops::kMaxGroups))
    return bad_input(fmt::format("{} has {} KV groups and this build takes {}: no option changes that",
                                 model_.architecture, spec_.groups.size(), ops::kMaxGroups));
  if (options_.page_order == "layer_first" && spec_.groups.size() > 1)
    return bad_input(
        fmt::format("{} has {} KV groups that share one arena, and page order layer_first takes one: "
                    "use page order page_first",
                    model_.architecture, spec_.groups.size()));
  return {};
}

Result<attention::Selection> Resolver::try_scale(KvScaleKind scale) {
  KvFormat format;
  format.k_type = kv_type_;
  format.v_type = kv_type_;
  format.scale = scale;
  spec_.kv_formats.assign(spec_.groups.size(), format);
  attention::Wish wish;
  wish.all = options_.attention_backend;
  wish.prefill = options_.prefill_attention_backend;
  wish.decode = options_.decode_attention_backend;
  wish.per_call = options_.attention;
  wish.page_size = options_.page_size;
  if (!options_.page_order.empty())
    wish.order = options_.page_order == "layer_first" ? PageOrder::layer_first : PageOrder::page_first;
  wish.minimum = spec_.required;
  const PageOrder order = spec_.groups.size() > 1 ? PageOrder::page_first : device_.page_order;
  return attention::select(
      table_, model::attention_calls(model_, device_, spec_.compute, spec_.kv_formats, spec_.level), wish,
      order);
}

Status Resolver::calls() {
  const bool fp8 = kv_type_ == DType::fp8_e4m3;
  KvScaleKind scale = KvScaleKind::none;
  std::string why;
  if (fp8) {
    scale = options_.kv_scale > 0.0f ? KvScaleKind::tensor : KvScaleKind::token_head;
    why = options_.kv_scale > 0.0f ? "asked for" : "fp8 without a scale of the checkpoint";
  }
  auto selection = try_scale(scale);
  if (!selection.ok() && scale == KvScaleKind::token_head) {
    if (auto plain = try_scale(KvScaleKind::tensor); plain.ok()) {
      selection = std::move(plain);
      scale = KvScaleKind::tensor;
      why = "no row takes a scale per token and head here, so scale 1 is used; --kv-scale decides";
    }
  }
  if (!selection.ok()) return selection.error();
  if (scale == KvScaleKind::tensor && options_.kv_scale > 0.0f) spec_.kv_scale = options_.kv_scale;
  if (fp8 && scale == KvScaleKind::tensor) because("KV scale {} for all: {}", spec_.kv_scale, why);
  if (fp8 && scale == KvScaleKind::token_head) because("KV scale per token and head: {}", why);
  spec_.selection = std::move(*selection);
  for (const attention::Pick& pick : spec_.selection.picks) {
    because("{} runs on {}: {}{}", pick.call.name, pick.backend->name,
            pick.pinned ? "asked for" : "first row of the table that fits",
            pick.refused.empty() ? "" : "; refused:");
    for (const attention::Refusal& refusal : pick.refused)
      because("  {}: {}", refusal.row, refusal.reason.text);
  }
  because("page size {}: {}", spec_.selection.page_size, spec_.selection.page_because);
  because("page order {}: {}", to_string(spec_.selection.order),
          options_.page_order.empty() ? "the platform's default" : "asked for");
  because("attention determinism {}: the least of the rows chosen",
          attention::to_string(spec_.selection.determinism));
  spec_.determinism = std::min(ops_.determinism, spec_.selection.determinism);
  because("determinism {}: the least of attention and {} ({})", attention::to_string(spec_.determinism),
          ops_.name, attention::to_string(ops_.determinism));
  return {};
}

}  // namespace

Result<platform::ThreadPlan> plan_threads(const Options& options, int cores) {
  QUIRE_TRY_STATUS(check_range("threads", "threads", options.threads, kMaxThreads));
  platform::ThreadPlan plan;
  plan.compute = options.threads > 0 ? options.threads : std::clamp(cores, 1, kMaxThreads);
  return plan;
}

Status check_options(const Options& options, const platform::DeviceInfo& device,
                     std::span<const attention::Backend> table) {
  QUIRE_TRY_STATUS(check_names(options, device.kind == platform::Kind::cpu));
  return check_backends(options, table);
}

Result<EngineSpec> resolve(const Options& options, const model::ModelSpec& model,
                           const platform::DeviceInfo& device, std::span<const attention::Backend> table) {
  return Resolver(options, model, device, table).run();
}

}  // namespace quire::engine
