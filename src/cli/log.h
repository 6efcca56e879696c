// Logging of the program: to stderr, as text or JSON. Prompts and answers are never logged.
#pragma once

#include <string>

#include "quire/engine.h"

namespace quire::cli {

// Levels: debug, info, warn, error, off.
Status set_up_log(const std::string& level, const std::string& format);

// What an engine decided: notes at info; with `explain` the whole trace and the ledger go to stderr as text.
void log_engine(const EngineInfo& info, bool explain);

}  // namespace quire::cli
