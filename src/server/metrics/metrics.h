// Metrics: follows every request on the loop's thread and writes what it saw in Prometheus' text format.
//
// A metric that means what vLLM's of that name means has its name and its buckets, so that dashboards made
// for vLLM show Quire; everything else is quire_*, process_* as usual. docs/MONITORING.md has the list.
// Counters of the engine are brought up to date after a turn, at most every kPeriod, and when the engine
// falls idle.
//
// Times of a request begin when the loop was given it (EngineLoop::submit): parsing HTTP is not in them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/router.h"
#include "server/http/server.h"
#include "server/kv_view/load_history.h"
#include "server/loop/loop.h"

namespace quire::server {

class Metrics final : public LoopObserver {
 public:
  static constexpr double kPeriod = 0.05;  // seconds

  // `model`: as requests name it. `max_tokens`: of one request, for the buckets of lengths.
  Metrics(const std::string& model, std::int32_t max_tokens);
  ~Metrics() override;

  // LoopObserver: the loop's thread.
  void taken(RequestId id, double queued_s) override;
  void refused(Ticket ticket, const Refusal& refusal) override;
  void output(const TextOutput& output, double now_s) override;
  void turn(Session& session, double step_s) override;

  // Any thread. Before the first text(): where the HTTP server's counts come from.
  void follow_http(std::function<HttpServerStats()> stats);
  // Any thread, for every answer; 0: the client left before one began, which counts as no answer.
  void answered(int status);
  std::string text();
  const LoadHistory& history() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// GET /metrics, without a key: it tells of load, never of requests. `metrics` outlives the router.
void add_metrics_routes(Router& router, Metrics& metrics);

}  // namespace quire::server
