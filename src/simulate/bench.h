// The core of `quire bench scheduler`: what the host side of one step takes (plan, tables, commit), without a
// device, with many sequences running and many waiting.
//
// steady     every running sequence decodes; nothing is admitted, the queue stands
// turnover   in every step one sequence ends and one of the queue is admitted with its prompt chunk
#pragma once

#include <cstdint>

#include "base/result.h"
#include "scheduler/waiting_list.h"

namespace quire::simulate {

struct BenchSchedulerRequest {
  std::int32_t running = 256;
  std::int32_t waiting = 10000;
  std::int32_t context = 1000;  // tokens of each prompt; half of it is one of 16 prefixes
  std::int32_t page_tokens = 16;
  std::int32_t steps = 500;  // measured of each kind
  scheduler::Policy policy = scheduler::Policy::fcfs;
};

struct StepTimes {
  double us = 0.0;  // median
  double us_p99 = 0.0;
  double us_max = 0.0;
};

struct BenchSchedulerReport {
  StepTimes steady;
  StepTimes turnover;
};

Result<BenchSchedulerReport> bench_scheduler(const BenchSchedulerRequest& request);

}  // namespace quire::simulate
