// /tokenize and /detokenize.
#pragma once

#include <string>

#include "server/api/call.h"
#include "server/http/router.h"
#include "server/loop/loop.h"

namespace quire::server::api {

// `loop` outlives the router.
void add_text_routes(Router& router, EngineLoop& loop, const ModelFacts& facts);

// The JSON schemas of the bodies, as text.
std::string tokenize_schema();
std::string detokenize_schema();

}  // namespace quire::server::api
