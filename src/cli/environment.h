// QUIRE_* variables that set nothing. A misspelt option is refused, as a misspelt flag is; a name that is
// like no option's may be somebody else's and gets a warning in the log.
#pragma once

#include <span>

#include "base/result.h"
#include "cli/command.h"

namespace quire::cli {

// Legal: the variables of all settings of all `commands`, and the few that are read elsewhere.
Status check_environment(std::span<const Command> commands);

}  // namespace quire::cli
