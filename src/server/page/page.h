// The web page: chat, page map, load, ledger and backends. Plain files that the program carries with it; the
// page asks only the server that it came from (its Content-Security-Policy allows nothing else) and needs no
// key itself: what it shows comes from /v1/..., which does.
#pragma once

#include "server/http/router.h"

namespace quire::server {

// GET / and GET /page/{file}.
void add_page_routes(Router& router);

}  // namespace quire::server
