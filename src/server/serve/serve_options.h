// What `quire serve` was asked, for the parts that answer requests.
#pragma once

#include <cstdint>
#include <string>

#include "server/http/server.h"

namespace quire::server {

struct ServeOptions {
  std::string model;              // the path as given
  std::string served_model_name;  // what "model" in requests and answers is; never empty
  std::int64_t created = 0;       // unix seconds at start, for /v1/models
  HttpServerOptions http;
  double drain_s = 30.0;  // after the first TERM or INT
  double ready_s = 30.0;  // /ready: the longest time without a turn while there is work
};

}  // namespace quire::server
