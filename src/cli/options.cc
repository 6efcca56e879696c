#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "base/token_id.h"
#include "kv/prefix_tree.h"
#include "scheduler/waiting_list.h"

namespace quire::cli {

namespace {

std::string show_int(std::int64_t value) { return value == 0 ? "auto" : std::to_string(value); }
std::string show_switch(bool value) { return value ? "on" : "off"; }
std::string show_float(float value) { return fmt::format("{:g}", value); }

Status parse_call_pin(const std::string& text, Options* options) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return bad_input("not CALL=NAME, as in full.decode=reference");
  }
  options->attention.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  return {};
}

std::string show_call_pins(const Options& options) {
  std::string text;
  for (const auto& [call, name] : options.attention) text += (text.empty() ? "" : " ") + call + "=" + name;
  return text;
}

Status parse_logit_bias(const std::string& text, Sampling* sampling) {
  const std::size_t equals = text.find('=');
  float value = 0;
  if (equals == std::string::npos) return bad_input("not ID=X, as in 42=-1.5");
  const std::string_view view = text;
  const std::optional<std::int32_t> token = parse_token_id(view.substr(0, equals));
  const bool ok = token && parse_number(view.substr(equals + 1), &value) && std::isfinite(value) &&
                  can_keep<float>(value);
  if (!ok) return bad_input("not ID=X, as in 42=-1.5");
  sampling->logit_bias.emplace_back(*token, value);
  return {};
}

std::string show_logit_bias(const Sampling& sampling) {
  std::string text;
  for (const auto& [token, value] : sampling.logit_bias)
    text += fmt::format("{}{}={:g}", text.empty() ? "" : " ", token, value);
  return text;
}

}  // namespace

void add_engine_settings(Settings& settings, Options* o, bool* explain) {
  add_engine_settings(settings, o, std::span<const std::string_view>());
  settings.add({.name = "explain",
                .group = kEngineGroup,
                .value_name = "",
                .help = "print why each decision fell as it did (stderr)",
                .set = into_switch(explain),
                .show = [explain] { return show_switch(*explain); }});
}

void add_engine_settings(Settings& settings, Options* o, std::span<const std::string_view> only) {
  const std::string group = kEngineGroup;
  const auto add = [&](Setting setting) {
    if (only.empty() || std::find(only.begin(), only.end(), setting.name) != only.end())
      settings.add(std::move(setting));
  };
  // `empty`: what an empty target means.
  const auto text = [&](const char* name, const char* value, const char* help, std::string* target,
                        std::string_view empty = "") {
    add({.name = name,
         .group = group,
         .value_name = value,
         .help = help,
         .set = into(target),
         .show = show_text(target, empty)});
  };
  const auto number = [&](const char* name, const char* help, std::int32_t* target, std::int64_t high) {
    add({.name = name,
         .group = group,
         .value_name = "N",
         .help = help,
         .set = into_auto(target, high),
         .show = [target] { return show_int(*target); }});
  };
  const auto toggle = [&](const char* name, const char* help, bool* target) {
    add({.name = name,
         .group = group,
         .value_name = "on|off",
         .help = help,
         .set = into_switch(target),
         .show = [target] { return show_switch(*target); }});
  };
  text("device", "cpu|cuda[:N]", "where the model runs", &o->device);
  text("attention-backend", "NAME", "row of `quire backends` for every call", &o->attention_backend);
  text("prefill-attention-backend", "NAME", "row for extend calls", &o->prefill_attention_backend);
  text("decode-attention-backend", "NAME", "row for decode calls", &o->decode_attention_backend);
  add({.name = "attention",
       .group = group,
       .value_name = "CALL=NAME",
       .help = "row for one call, as in full.decode=reference",
       .repeats = true,
       .set = [o](const std::string& value) { return parse_call_pin(value, o); },
       .show = [o] { return show_call_pins(*o); },
       .clear = [o] { o->attention.clear(); }});
  number("page-size", "tokens per KV page, 1..256", &o->page_size, 256);
  text("page-order", "page_first|layer_first", "order of the KV arena; default: the platform's",
       &o->page_order);
  text("dtype", "auto|f32|bf16|f16", "compute type; auto: f32 on the CPU, bf16 on a GPU, others are refused",
       &o->dtype);
  text("kv-dtype", "auto|f32|bf16|f16|fp8_e4m3", "KV cache type; auto is bf16", &o->kv_dtype);
  add({.name = "kv-memory",
       .group = group,
       .value_name = "SIZE",
       .help = "bytes for KV pages: 64M, 2G, auto",
       .set = into_bytes(&o->kv_memory_bytes),
       .show = [o] { return show_int(o->kv_memory_bytes); }});
  add({.name = "kv-scale",
       .group = group,
       .value_name = "X|auto",
       .help = "one scale for all fp8 KV; auto: per token and head",
       .set = into_auto(&o->kv_scale, 1e-30, 1e30),
       .show = [o] { return o->kv_scale == 0 ? std::string("auto") : show_float(o->kv_scale); }});
  number("max-running", "sequences that run together", &o->max_running, 1 << 20);
  number("max-context", "tokens of prompt and answer (its first always fits); auto is the model's",
         &o->max_context, 1 << 30);
  number("chunk-tokens", "most prompt tokens of one step", &o->chunk_tokens, 1 << 20);
  text("prefix-cache", "on|off", "reuse of shared prefixes", &o->prefix_cache, "on");
  text("cache-eviction", "lru|lfu|fifo|priority", "which prefixes go first", &o->cache_eviction,
       kv::kEvictionNames.front());
  text("schedule", "fcfs|longest_prefix|priority", "who comes next", &o->schedule,
       scheduler::kPolicyNames.front());
  number("max-waiting", "requests in the engine's queue, which refuses more; run holds them back",
         &o->max_waiting, 1 << 20);
  add({.name = "target-itl",
       .group = group,
       .value_name = "MS",
       .help = "time between tokens that prompt chunks should allow; 0: none",
       .set = into(&o->target_itl_ms, 0, 1e6),
       .show = [o] { return show_float(o->target_itl_ms); }});
  text("deterministic", "LEVEL",
       "least level: none|run_to_run|batch_invariant|schedule_invariant; default: the platform's",
       &o->deterministic);
  number("threads", "compute threads; auto is the cores we may use", &o->threads, 4096);
  text("load-format", "auto|dummy", "dummy: random weights of the config's shapes", &o->load_format);
  toggle("graphs", "replay recorded decode steps", &o->graphs);
  toggle("overlap", "plan a step while the last one runs", &o->overlap);
}

void add_sampling_settings(Settings& settings, SamplingFlags* f) {
  const std::string group = "Sampling";
  const auto number = [&](const char* name, const char* help, float* target, double low, double high) {
    settings.add({.name = name,
                  .group = group,
                  .value_name = "X",
                  .help = help,
                  .set = into(target, low, high),
                  .show = [target] { return show_float(*target); }});
  };
  settings.add({.name = "max-tokens",
                .group = group,
                .value_name = "N",
                .help = "most tokens of the answer; auto: as the context allows",
                .set = into_auto(&f->max_tokens, 1 << 30),
                .show = [f] { return show_int(f->max_tokens); }});
  number("temperature", "0 is greedy", &f->sampling.temperature, 0, 1000);
  settings.add({.name = "top-k",
                .group = group,
                .value_name = "N",
                .help = "keep the N most likely; 0 is off",
                .set = into(&f->sampling.top_k, 0, 1 << 30),
                .show = [f] { return std::to_string(f->sampling.top_k); }});
  number("top-p", "keep the most likely up to this sum", &f->sampling.top_p, 1e-9, 1);
  number("min-p", "drop what is less than this share of the most likely", &f->sampling.min_p, 0, 1);
  number("repetition-penalty", "over prompt and answer; 1 is off", &f->sampling.repetition_penalty, 1e-3,
         1e3);
  number("frequency-penalty", "per use in the answer", &f->sampling.frequency_penalty, -1e3, 1e3);
  number("presence-penalty", "once for a token in the answer", &f->sampling.presence_penalty, -1e3, 1e3);
  settings.add({.name = "logit-bias",
                .group = group,
                .value_name = "ID=X",
                .help = "added to a token's logit",
                .repeats = true,
                .set = [f](const std::string& value) { return parse_logit_bias(value, &f->sampling); },
                .show = [f] { return show_logit_bias(f->sampling); },
                .clear = [f] { f->sampling.logit_bias.clear(); }});
  settings.add({.name = "seed",
                .group = group,
                .value_name = "N",
                .help = "same seed, same text",
                .set = into(&f->sampling.seed),
                .show = [f] { return std::to_string(f->sampling.seed); }});
  settings.add({.name = "stop",
                .group = group,
                .value_name = "STR",
                .help = "ends the answer, not part of it",
                .repeats = true,
                .set = [f](const std::string& value) -> Status {
                  f->stop.push_back(value);
                  return {};
                },
                .show = [f] { return fmt::format("{}", fmt::join(f->stop, ", ")); },
                .clear = [f] { f->stop.clear(); }});
  settings.add({.name = "ignore-eos",
                .group = group,
                .value_name = "",
                .help = "do not end at the model's end tokens",
                .set = into_switch(&f->ignore_eos),
                .show = [f] { return show_switch(f->ignore_eos); }});
}

Sampling effective_sampling(const Settings& settings, const SamplingFlags& flags,
                            const GenerationDefaults& defaults) {
  Sampling sampling = flags.sampling;
  if (!defaults.do_sample) return sampling;  // greedy unless the user said otherwise
  if (!settings.given("temperature")) sampling.temperature = defaults.temperature.value_or(1.0f);
  if (!settings.given("top-k")) sampling.top_k = defaults.top_k.value_or(0);
  if (!settings.given("top-p")) sampling.top_p = defaults.top_p.value_or(1.0f);
  if (!settings.given("min-p")) sampling.min_p = defaults.min_p.value_or(0.0f);
  if (!settings.given("repetition-penalty"))
    sampling.repetition_penalty = defaults.repetition_penalty.value_or(1.0f);
  return sampling;
}

}  // namespace quire::cli
