// The API's routes over an EngineLoop.
#pragma once

#include "server/http/router.h"
#include "server/loop/loop.h"
#include "server/serve/serve_options.h"

namespace quire::server {

// /v1/models, /v1/completions, /v1/chat/completions, /v1/responses, /tokenize, /detokenize, /openapi.json.
// `loop` outlives the router; `options` is read now.
void add_api_routes(Router& router, EngineLoop& loop, const ServeOptions& options);

}  // namespace quire::server
