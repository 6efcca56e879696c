// The core of `quire bench serve`: a load on any server with OpenAI's API, and what became of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/bench/prompts.h"
#include "server/bench/report.h"

namespace quire::server::bench {

struct BenchServeRequest {
  std::string url = "http://127.0.0.1:8080";
  std::string key;           // empty: none
  std::string prompts_text;  // lines of a file of prompts; empty: synthetic
  int requests = 0;          // 0: 64 synthetic ones, each line of a file once
  Wording wording;           // an empty model: the first that the server lists
  Synthetic synthetic;       // its `requests` is not used
  int clients = 8;           // closed loop
  double rate = 0.0;         // over 0: open loop, requests a second; all of them within a day
  int warmup = 0;            // requests before, with other words, that are not measured
  double timeout_s = 600.0;
  Limits limits;
};

struct BenchServeResult {
  std::string url;
  std::string model;
  Report report;
  std::vector<Outcome> outcomes;  // without bodies
};

// `progress`: as in run_load(); with how many there are.
Result<BenchServeResult> bench_serve(BenchServeRequest request,
                                     const std::function<bool(std::size_t ended, std::size_t all)>& progress);

// One JSON object; `samples`: with every request.
std::string bench_serve_json(const BenchServeRequest& request, const BenchServeResult& result, bool samples);
std::string bench_serve_text(const BenchServeRequest& request, const BenchServeResult& result);
std::string bench_serve_svg(const BenchServeRequest& request, const BenchServeResult& result);

}  // namespace quire::server::bench
