// simulate(): a trace through the real scheduler, pool and tables, against a device model instead of a
// device. The clock is the model's: nothing waits, and equal traces and settings give equal reports.
//
// The loop is the engine's (engine/engine_impl.h): plan and launch step n + 1, then take in step n. Clients
// are simulated too: those that go away, and slow ones, which the server drops when they leave more than
// client_buffer_tokens unread.
//
// Every step is checked: conservation by its cheap part (kv/audit.h), in full every audit_every steps and at
// idle; and what each row reads, by stamps (simulate/device.h). The first violation ends the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/page_pool.h"
#include "scheduler/scheduler.h"
#include "simulate/device_model.h"
#include "simulate/report.h"
#include "simulate/trace.h"

namespace quire::simulate {

struct GroupSpec {
  std::string name;
  kv::Keep keep = kv::Keep::all;
  std::int32_t width = 0;
};

struct SimulationConfig {
  std::vector<GroupSpec> groups = {{"full", kv::Keep::all, 0}};
  std::int32_t page_tokens = 16;
  std::int64_t kv_tokens = 65536;  // capacity of the pool: so many tokens of all groups
  scheduler::SchedulerConfig scheduler;
  DeviceModel device;
  bool overlap = true;
  std::int32_t client_buffer_tokens = 64;
  std::int64_t audit_every = 1000;
  // For tests of the checks: called after each plan, may do harm to the pool.
  std::function<void(kv::PagePool&, const scheduler::StepPlan&)> sabotage;
};

Result<Report> simulate(const Trace& trace, const SimulationConfig& config);

}  // namespace quire::simulate
