// Logging of the program: to stderr, as text or JSON. Prompts and answers are never logged.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/settings.h"
#include "quire/engine.h"

namespace quire::cli {

// How and how much to log; both are settings of every command.
struct LogOptions {
  std::string level = "warn";   // debug, info, warn, error, off
  std::string format = "text";  // text, json
};
void add_log_settings(Settings& settings, LogOptions* options);
// REQUIRES values that the settings took. Before it lines are text.
void set_up_log(const LogOptions& options);

// What the user is to hear at any level, to stderr: "quire: line", or a JSON line of that level.
void announce(std::string_view line, std::string_view level = "info");

// What an engine decided: notes at info; with `explain` also print_explanation().
void log_engine(const EngineInfo& info, bool explain);

// --explain: the trace of resolve() and the ledger (empty: without it), to stderr as text.
void print_explanation(std::span<const std::string> trace, std::span<const LedgerLine> ledger);

}  // namespace quire::cli
