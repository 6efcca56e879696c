// `quire config`: the effective values of all options and where each came from.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/observe.h"

namespace quire::cli {

namespace {

struct Config {
  std::shared_ptr<Settings> settings = std::make_shared<Settings>();
  bool json = false;
  bool explain = false;
  Options options;
  SamplingFlags sampling;
};

Status print_config(const Config& config) {
  if (config.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const Setting& setting : config.settings->all()) {
      json[setting.name] = {{"value", setting.show()}, {"origin", to_string(setting.origin)}};
    }
    fmt::print("{}\n", json_text(json));
    return {};
  }
  for (const Setting& setting : config.settings->all()) {
    const std::string value = setting.show();
    fmt::print("{:<28} {:<20} {}\n", setting.name, value.empty() ? "-" : value, to_string(setting.origin));
  }
  return {};
}

}  // namespace

Command make_config(CLI::App& root) {
  auto config = std::make_shared<Config>();
  Flags command(root, "config", "print the effective options of run, chat and score, and their origins");
  command.json(&config->json);
  add_engine_settings(*config->settings, &config->options, &config->explain);
  add_sampling_settings(*config->settings, &config->sampling);
  add_observe_settings(*config->settings, &config->options);
  return {&command.app(), config->settings, [config] { return print_config(*config); }};
}

}  // namespace quire::cli
