// The life of a server: all routes over one EngineLoop, until a signal ends it.
//
// End. The first TERM or INT: new requests get 503, running ones go on, /ready says no; when they have ended,
// or at the deadline, when they are cancelled, connections are closed and the process ends. The second: at
// once. A process that is killed leaves nothing behind: the next one can listen on the same port.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "quire/session.h"
#include "server/serve/serve_options.h"

namespace quire::server {

// Serves until it was told to end. `backends`: as `quire backends MODEL --json` prints them. `say` gets lines
// for the user: where it listens, that it drains. Fails when it cannot listen.
Status serve(const ServeOptions& options, std::unique_ptr<Session> session, const std::string& backends,
             const std::function<void(const std::string&)>& say);

// Keys of a file: one a line, '#' begins a comment line.
Result<std::vector<std::string>> read_api_keys(const std::string& path);

}  // namespace quire::server
