// TERM and INT of a server: the first asks it to end, the second ends the process at once.
#pragma once

#include "base/result.h"

namespace quire::server {

// From here on the process takes these signals; one server in a process. REQUIRES that wait_for_end() follows
// soon.
Status take_signals();
// Sleeps until the first TERM or INT since take_signals(), and says which.
int wait_for_end();

}  // namespace quire::server
