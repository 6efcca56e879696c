// One call on its way: its requests in the engine's loop, its answer to the responder.
#pragma once

#include <memory>

#include "server/api/answer.h"
#include "server/api/call.h"
#include "server/http/http.h"
#include "server/loop/loop.h"

namespace quire::server::api {

// Why a group of requests was not taken, as an error of HTTP.
ApiError refused(const Refusal& refusal);

// Starts the call, whose prompts are taken out of it. The client that leaves ends it. Does not block.
void run_call(EngineLoop& loop, Call& call, AnswerHead head, std::uint64_t fresh_seed,
              const std::shared_ptr<Responder>& responder);

}  // namespace quire::server::api
