// Logging of the program: to stderr, as text or JSON. Prompts and answers are never logged.
#pragma once

#include <span>
#include <string>

#include "quire/engine.h"

namespace quire::cli {

// Levels: debug, info, warn, error, off.
Status set_up_log(const std::string& level, const std::string& format);

// What an engine decided: notes at info; with `explain` also print_explanation().
void log_engine(const EngineInfo& info, bool explain);

// --explain: the trace of resolve() and the ledger (empty: without it), to stderr as text.
void print_explanation(std::span<const std::string> trace, std::span<const LedgerLine> ledger);

}  // namespace quire::cli
