// `quire info`: what a model is and what running it would hold, before anything is allocated for it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/log.h"
#include "engine/parts.h"

namespace quire::cli {

namespace {

using Json = nlohmann::ordered_json;

struct InfoFlags {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  std::string model;
  bool json = false;
  bool explain = false;
  Options options;
};

Json to_json(const engine::EngineSurvey& survey) {
  Json json;
  json["architecture"] = survey.architecture;
  json["layers"] = survey.layers;
  json["parameters"] = survey.parameters;
  json["weights_bytes"] = survey.weights_bytes;
  json["groups"] = Json::array();
  for (std::size_t g = 0; g < survey.spec.groups.size(); ++g) {
    const model::KvGroup& group = survey.spec.groups[g];
    json["groups"].push_back({{"name", group.name},
                              {"layers", group.layers.size()},
                              {"kv_format", to_string(survey.spec.kv_formats[g])},
                              {"bytes_per_token", survey.kv.layouts[g].bytes_per_token()},
                              {"window", group.mask_width == 0 ? Json(nullptr) : Json(group.mask_width)}});
  }
  json["ledger"] = Json::array();
  for (const LedgerLine& line : survey.ledger.lines()) {
    json["ledger"].push_back(
        {{"owner", line.owner}, {"bytes", line.bytes}, {"mapped", line.mapped}, {"host", line.host}});
  }
  json["kv_capacity_tokens"] = survey.kv.capacity_tokens;
  json["page_size"] = survey.spec.page_size();
  json["notes"] = survey.notes;
  return json;
}

void print(const engine::EngineSurvey& survey) {
  fmt::print("{}, {} layers, {:.1f} M parameters, {:.1f} MB of weights\n", survey.architecture, survey.layers,
             static_cast<double>(survey.parameters) / 1e6, static_cast<double>(survey.weights_bytes) / 1e6);
  for (std::size_t g = 0; g < survey.spec.groups.size(); ++g) {
    const model::KvGroup& group = survey.spec.groups[g];
    fmt::print("group {:<8} {:>3} layers  {}  {} bytes a token", group.name, group.layers.size(),
               to_string(survey.spec.kv_formats[g]), survey.kv.layouts[g].bytes_per_token());
    fmt::print("{}\n", group.mask_width == 0 ? std::string() : fmt::format("  window {}", group.mask_width));
  }
  for (const std::string& note : survey.notes) fmt::print("note: {}\n", note);
  fmt::print("{}", engine::to_string(survey.ledger.lines()));
  fmt::print("one sequence may hold {} tokens of KV; pages of {} tokens\n", survey.kv.capacity_tokens,
             survey.spec.page_size());
}

Status info(const InfoFlags& flags) {
  QUIRE_TRY(survey, engine::survey(flags.model, flags.options));
  if (flags.explain) print_explanation(survey.spec.trace, {});
  if (flags.json) {
    fmt::print("{}\n", json_text(to_json(survey)));
  } else {
    print(survey);
  }
  return {};
}

}  // namespace

Command make_info(CLI::App& root) {
  auto flags = std::make_shared<InfoFlags>();
  Flags command(root, "info", "architecture, KV groups, sizes, and the memory ledger for the given limits");
  command.need("MODEL", &flags->model, "a Hugging Face folder (config.json is enough) or a .gguf file");
  command.json(&flags->json);
  add_engine_settings(*flags->settings, &flags->options, &flags->explain);
  return {&command.app(), flags->settings, [flags] { return info(*flags); }};
}

}  // namespace quire::cli
