// --record and --shadow: their settings, and what they have to say when a run ends.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/settings.h"
#include "quire/engine.h"

namespace quire::cli {

void add_observe_settings(Settings& settings, Options* options);

// Adds "record" and "shadow" to a run's JSON, each only when it was asked for.
void add_observed(nlohmann::ordered_json& json, const EngineStats& stats);
// The same as lines on stderr; a record that ended early says so here.
void print_observed(const EngineStats& stats);

}  // namespace quire::cli
