// A load of HTTP requests, with the times of every one. One thread, non-blocking sockets and poll(): the
// measuring side should cost the machine little. Connections are kept and used again.
//
// Closed loop: `clients` requests are always under way, each next one begins when one has ended. Open loop:
// every request begins at its own time, whatever the server does; its times count from then, so a server (or
// this client) that falls behind cannot hide it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/bench/stream_events.h"
#include "server/bench/target.h"

namespace quire::server::bench {

struct Job {
  std::string path;
  std::string body;   // empty: a GET
  double at_s = 0.0;  // open loop: since the start
};

struct LoadPlan {
  int clients = 8;  // closed loop: requests under way; open loop (`open`): connections at most
  bool open = false;
  double timeout_s = 600.0;  // of one request
};

// Times are seconds since the start of the load.
struct Outcome {
  double begin_s = 0.0;
  double first_s = 0.0;  // the first text; 0: there was none
  double last_s = 0.0;   // the last text
  double end_s = 0.0;
  std::vector<float> gaps_s;  // between the events with text
  std::int64_t texts = 0;     // of them
  std::optional<Usage> usage;
  int status = 0;     // HTTP; 0: none came
  std::string error;  // why it has no whole answer; empty: it has
  std::string body;   // of what is no stream
  bool ok() const { return error.empty(); }
};

// Outcomes in the order of the jobs. `progress` is called about twice a second with how many have ended; its
// false ends the load (those under way are dropped with an error, those not begun have begin_s < 0).
// An error when nothing can be reached at the target at all.
Result<std::vector<Outcome>> run_load(const Target& target, const std::vector<Job>& jobs,
                                      const LoadPlan& plan, const std::function<bool(std::size_t)>& progress);

}  // namespace quire::server::bench
