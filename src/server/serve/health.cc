#include "server/serve/health.h"

#include <fmt/format.h>

namespace quire::server {

namespace {

HttpAnswer readiness(const Pulse& pulse, double ready_s) {
  const bool moves = pulse.idle || pulse.since_turn_s <= ready_s;
  const char* why = pulse.draining ? "\"draining\"" : !moves ? "\"the engine does not move\"" : "null";
  const bool ready = moves && !pulse.draining;
  HttpAnswer answer;
  answer.status = ready ? 200 : 503;
  answer.body = fmt::format(
      R"({{"ready":{},"why_not":{},"idle":{},"since_turn_s":{:.3f},"unfinished":{},"waiting":{},"turns":{}}})",
      ready, why, pulse.idle, pulse.since_turn_s, pulse.unfinished, pulse.waiting, pulse.turns);
  answer.headers = {{"cache-control", "no-store"}};
  return answer;
}

}  // namespace

void add_health_routes(Router& router, const EngineLoop& loop, double ready_s) {
  router.add("GET", "/health", RouteAccess::open,
             [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
               responder->send({.body = R"({"status":"ok"})", .headers = {{"cache-control", "no-store"}}});
             });
  router.add("GET", "/ready", RouteAccess::open,
             [&loop, ready_s](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
               responder->send(readiness(loop.pulse(), ready_s));
             });
}

}  // namespace quire::server
