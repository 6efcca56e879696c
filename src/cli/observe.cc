#include "cli/observe.h"

#include <fmt/format.h>

#include "engine/ledger.h"

namespace quire::cli {

namespace {

constexpr const char* kGroup = "Record and shadow";

nlohmann::ordered_json to_json(const ShadowPlace& place) {
  return {{"error", place.error}, {"step", place.step}, {"call", place.call},
          {"layer", place.layer}, {"row", place.row},   {"head", place.head}};
}

std::string to_text(const ShadowPlace& place) {
  if (place.error == 0) return "none";
  return fmt::format("{:.3g} (step {}, {} layer {}, row {}, head {})", place.error, place.step, place.call,
                     place.layer, place.row, place.head);
}

double times_first(const ShadowStats& shadow) {
  return shadow.first_seconds > 0 ? shadow.seconds / shadow.first_seconds : 0.0;
}

}  // namespace

void add_observe_settings(Settings& settings, Options* o) {
  const auto text = [&](const char* name, const char* value, const char* help, std::string* target,
                        std::string_view empty = "") {
    settings.add({.name = name,
                  .group = kGroup,
                  .value_name = value,
                  .help = help,
                  .set = into(target),
                  .show = show_text(target, empty)});
  };
  text("record", "DIR", "store the steps in a folder, for `quire replay`; holds prompts and answers",
       &o->record);
  settings.add(
      {.name = "record-limit",
       .group = kGroup,
       .value_name = "SIZE",
       .help = "the record ends there, the run goes on: 64M, 2G; auto is 1G",
       .set = into_bytes(&o->record_limit_bytes),
       .show = [o] { return o->record_limit_bytes == 0 ? "auto" : std::to_string(o->record_limit_bytes); }});
  text("record-layers", "all|none|0,3-5", "layers whose attention calls (q, result, KV) are stored",
       &o->record_layers, "all");
  text("record-steps", "all|0,3-5|100-", "steps to store", &o->record_steps, "all");
  text("shadow", "BACKEND:FRACTION", "run a second row on a fraction of the steps and report the differences",
       &o->shadow);
}

void add_observed(nlohmann::ordered_json& json, const EngineStats& stats) {
  const RecordStats& record = stats.record;
  if (!record.path.empty())
    json["record"] = {{"path", record.path},
                      {"steps", record.steps},
                      {"bytes", record.bytes},
                      {"ended_early", record.ended}};
  const ShadowStats& shadow = stats.shadow;
  if (shadow.backend.empty()) return;
  json["shadow"] = {{"backend", shadow.backend},
                    {"steps", shadow.steps},
                    {"of_steps", stats.steps},
                    {"calls", shadow.calls},
                    {"calls_over", shadow.calls_over},
                    {"frobenius", shadow.frobenius},
                    {"frobenius_gate", shadow.frobenius_gate},
                    {"max_abs", to_json(shadow.max_abs)},
                    {"max_rel", to_json(shadow.max_rel)},
                    {"seconds", shadow.seconds},
                    {"first_seconds", shadow.first_seconds},
                    {"compare_seconds", shadow.compare_seconds},
                    {"share", shadow.share}};
}

void print_observed(const EngineStats& stats) {
  const RecordStats& record = stats.record;
  if (!record.path.empty())
    fmt::print(stderr, "[record: {} steps, {} in {}]\n", record.steps, engine::bytes_to_string(record.bytes),
               record.path);
  if (!record.path.empty() && record.steps == 0 && record.ended.empty())
    fmt::print(stderr, "quire: the record holds no steps: the run had {}, see --record-steps\n", stats.steps);
  if (!record.ended.empty())
    fmt::print(stderr, "quire: the record ended after {} of {} steps: {}\n", record.steps, stats.steps,
               record.ended);
  const ShadowStats& shadow = stats.shadow;
  if (shadow.backend.empty()) return;
  fmt::print(stderr,
             "[shadow {}: {} of {} steps, {} calls, {} over the gate | largest difference {} | relative {} | "
             "{:.3f} s, "
             "{:.1f} times the first row, {:.1f} % of the time in steps]\n",
             shadow.backend, shadow.steps, stats.steps, shadow.calls, shadow.calls_over,
             to_text(shadow.max_abs), to_text(shadow.max_rel), shadow.seconds, times_first(shadow),
             100 * shadow.share);
}

}  // namespace quire::cli
