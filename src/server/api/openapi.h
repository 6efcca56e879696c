// The server's OpenAPI document. The schemas of requests are written by the same code that reads them
// (fields.h).
#pragma once

#include <string>

#include "server/api/call.h"

namespace quire::server::api {

// OpenAPI 3.1, as JSON text.
std::string openapi_document(const ModelFacts& facts);

}  // namespace quire::server::api
