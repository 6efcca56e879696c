// /health and /ready, without a key.
#pragma once

#include "server/http/router.h"
#include "server/loop/loop.h"

namespace quire::server {

// GET /health: 200 as long as the process answers. GET /ready: 200 when a request would be taken and the
// engine moves (idle, or a turn within `ready_s`); else 503 with the reason. `loop` outlives the router.
void add_health_routes(Router& router, const EngineLoop& loop, double ready_s);

}  // namespace quire::server
