// `quire backends`: the matrix of attention backends, and for a model the choice per call with the reason why
// every other row was refused. Needs no weights and, but for its description, no device.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attention/caps.h"
#include "attention/select.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "cli/matrix.h"
#include "engine/resolve.h"
#include "model/spec.h"
#include "platform/platform.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;

struct BackendsFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  bool with_model = false;
  bool json = false;
  bool markdown = false;
  bool explain = false;
  Options options;
};

// sm90 describes a CUDA device that need not be here; anything else is opened for its description.
Result<platform::DeviceInfo> describe_device(const Options& options) {
  static constexpr std::string_view kArchitectures[] = {"sm80",  "sm86",  "sm89", "sm90",
                                                        "sm100", "sm103", "sm120"};
  if (options.device.rfind("sm", 0) == 0) {
    if (std::find(std::begin(kArchitectures), std::end(kArchitectures), options.device) ==
        std::end(kArchitectures))
      return bad_input(fmt::format(
          "--device {} is no architecture that is known here: give one of {}, or cpu, cuda, cuda:N",
          options.device, fmt::join(kArchitectures, ", ")));
    return platform::DeviceInfo{
        .kind = platform::Kind::cuda, .arch = std::stoi(options.device.substr(2)), .name = options.device};
  }
  QUIRE_TRY(device, platform::open_device(options.device, platform::ThreadPlan{}));
  return device->info();
}

Json problem_to_json(const attention::Problem& problem) {
  Json json;
  json["phase"] = to_string(problem.phase);
  json["q_heads"] = problem.q_heads;
  json["kv_heads"] = problem.kv_heads;
  json["qk_dim"] = problem.qk_dim;
  json["v_dim"] = problem.v_dim;
  json["q_type"] = to_string(problem.q_type);
  json["kv_format"] = to_string(problem.kv);
  json["page_size"] = problem.page_size;
  json["page_order"] = to_string(problem.order);
  json["source"] = to_string(problem.source);
  json["mask"] = to_string(problem.mask);
  json["features"] = attention::features_to_string(problem.features);
  return json;
}

Json call_to_json(const attention::Pick& pick) {
  Json refused = Json::array();
  for (const attention::Refusal& refusal : pick.refused) {
    refused.push_back({{"row", refusal.row},
                       {"facts", {to_string(refusal.reason.facts[0]), to_string(refusal.reason.facts[1])}},
                       {"reason", refusal.reason.text},
                       {"fix", refusal.reason.fix}});
  }
  return {{"call", pick.call.name},       {"group", pick.call.group},
          {"layers", pick.call.layers},   {"problem", problem_to_json(pick.call.problem)},
          {"choice", pick.backend->name}, {"refused", refused}};
}

// What the level costs in speed: what would run otherwise if any level would do. The figure is
// docs/PERFORMANCE.md's.
Result<std::string> price_of_level(const engine::EngineSpec& spec, const Options& options,
                                   const model::ModelSpec& model, const platform::DeviceInfo& device,
                                   std::span<const attention::Backend> table) {
  Options free = options;
  free.deterministic = "none";
  QUIRE_TRY(other, engine::resolve(free, model, device, table));
  std::string differs;
  for (const attention::Pick& pick : other.selection.picks) {
    const auto same = [&](const attention::Pick& ours) {
      return ours.call.name == pick.call.name && ours.backend == pick.backend &&
             ours.call.problem.source == pick.call.problem.source;
    };
    if (std::none_of(spec.selection.picks.begin(), spec.selection.picks.end(), same))
      differs += fmt::format("{}{} ({})", differs.empty() ? "" : ", ", pick.call.name,
                             to_string(pick.call.problem.source));
  }
  if (differs.empty()) return std::string("none: the same rows and products would run at any level");
  const bool measured = device.kind == platform::Kind::cpu && model.latent;
  return fmt::format("{}: at lower levels these calls run instead: {}",
                     measured
                         ? "prompt chunks take some 1.3x the time, 1.4x behind 2,048 tokens (CPU, 16 heads, "
                           "2026-11-30)"
                         : "not measured",
                     differs);
}

Json platform_to_json(const platform::DeviceInfo& device, std::span<const attention::Backend> table) {
  Json json;
  json["platform"] = to_string(device.kind);
  json["device"] = device.name;
  json["rows"] = rows_to_json(table, device);
  return json;
}

void add_calls(Json& json, const engine::EngineSpec& spec) {
  Json& calls = json["calls"] = Json::array();
  for (const attention::Pick& pick : spec.selection.picks) calls.push_back(call_to_json(pick));
  json["page_size"] = {{"value", spec.selection.page_size}, {"because", spec.selection.page_because}};
  json["determinism"] = attention::to_string(spec.determinism);
}

// Of the engine's options, the matrix alone depends on the device only. A wrong value is said first: its user
// will want the right one with the model.
Status check_without_model(const BackendsFlags& flags, const platform::DeviceInfo& device,
                           std::span<const attention::Backend> table) {
  for (const Setting& setting : flags.settings->all()) {
    if (setting.origin != Origin::flag || setting.group != kEngineGroup || setting.name == "device") continue;
    QUIRE_TRY_STATUS(engine::check_options(flags.options, device, table));
    return bad_input(fmt::format(
        "--{0} says how a model would run, and without one `quire backends` prints every row: give "
        "a MODEL or leave --{0} out",
        setting.name));
  }
  return {};
}

Status print_matrix(const BackendsFlags& flags, const platform::DeviceInfo& device,
                    std::span<const attention::Backend> table) {
  QUIRE_TRY_STATUS(check_without_model(flags, device, table));
  if (flags.markdown) {
    fmt::print("{}", matrix_as_markdown(table, device));
  } else if (flags.json) {
    fmt::print("{}\n", json_text(platform_to_json(device, table)));
  } else {
    fmt::print("{}", matrix_as_text(table, device));
    for (const std::string& line : platform::platform_lines()) fmt::print("{}\n", line);
  }
  return {};
}

Status backends(const BackendsFlags& flags) {
  if (flags.markdown && flags.json)
    return bad_input("--markdown and --json are two forms of one answer: give one of them");
  if (flags.markdown && flags.with_model)
    return bad_input("--markdown is the matrix of all rows: leave MODEL out, or --markdown");
  QUIRE_TRY(device, describe_device(flags.options));
  const std::span<const attention::Backend> table = attention::backends(device.kind);
  if (!flags.with_model) return print_matrix(flags, device, table);
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(flags.model));
  QUIRE_TRY(model, model::read_spec(*checkpoint));
  QUIRE_TRY(spec, engine::resolve(flags.options, model, device, table));
  if (flags.explain) print_explanation(spec.trace, {});
  QUIRE_TRY(price, price_of_level(spec, flags.options, model, device, table));
  if (!flags.json) {
    fmt::print("{}determinism {}, price of that level: {}\n", attention::explain(spec.selection),
               attention::to_string(spec.determinism), price);
    return {};
  }
  Json json = platform_to_json(device, table);
  add_calls(json, spec);
  json["determinism_price"] = price;
  fmt::print("{}\n", json_text(json));
  return {};
}

}  // namespace

Result<std::string> backends_as_json(const std::string& path, const Options& options) {
  QUIRE_TRY(device, describe_device(options));
  const std::span<const attention::Backend> table = attention::backends(device.kind);
  Json json = platform_to_json(device, table);
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(path));
  QUIRE_TRY(model, model::read_spec(*checkpoint));
  QUIRE_TRY(spec, engine::resolve(options, model, device, table));
  QUIRE_TRY(price, price_of_level(spec, options, model, device, table));
  add_calls(json, spec);
  json["determinism_price"] = price;
  return json_text(json);
}

Command make_backends(CLI::App& root) {
  auto flags = std::make_shared<BackendsFlags>();
  Flags command(root, "backends",
                "the matrix of attention backends; with a model, what it would use and why");
  command.text("MODEL", &flags->model, "a model (its config.json is enough)", &flags->with_model)
      .json(&flags->json);
  command.on("--markdown", &flags->markdown, "print the matrix as the table of the docs");
  add_engine_settings(*flags->settings, &flags->options, &flags->explain);
  return {&command.app(), flags->settings, [flags] { return backends(*flags); }};
}

}  // namespace quire::cli
