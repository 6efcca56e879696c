#include "simulate/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "simulate/trace.h"

namespace quire::simulate {

// One step's host work. Not inlined, and outside the anonymous namespace: a profiler collects by its name
// (tests/scheduler_cost_test.py).
[[gnu::noinline]] const scheduler::StepPlan* timed_step(scheduler::Scheduler& scheduler,
                                                        std::span<const scheduler::RowResult> results) {
  const scheduler::StepPlan* next = scheduler.plan();
  scheduler.commit(results);
  // All that ran has ended: only with its slots back does somebody of the queue follow.
  return next != nullptr ? next : scheduler.plan();
}

namespace {

constexpr std::int32_t kLeastChunk = 8192;

Status check(const BenchSchedulerRequest& request) {
  const auto within = [](const char* what, std::int64_t value, std::int64_t low,
                         std::int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return bad_input(fmt::format("{} {} is outside {} to {}", what, value, low, high));
  };
  QUIRE_TRY_STATUS(within("--running", request.running, 1, 65536));
  QUIRE_TRY_STATUS(within("--waiting", request.waiting, 0, 1 << 20));
  QUIRE_TRY_STATUS(within("--context", request.context, 2, 1 << 17));
  QUIRE_TRY_STATUS(within("--page-size", request.page_tokens, 1, 256));
  return within("--steps", request.steps, 1, 100000);
}

StepTimes times_of(std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  const auto at = [&us](double q) {
    return us[static_cast<std::size_t>(q * static_cast<double>(us.size() - 1))];
  };
  return {at(0.5), at(0.99), us.back()};
}

class Bench {
 public:
  explicit Bench(const BenchSchedulerRequest& request) : request_(request) {}

  Result<BenchSchedulerReport> run() {
    QUIRE_TRY_STATUS(make_scheduler());
    // Those that run end only when told to.
    for (std::int32_t i = 0; i < request_.running; ++i) QUIRE_TRY_STATUS(submit());
    flying_ = scheduler_->plan();
    while (planned().decode_rows < request_.running) step(0);
    for (std::int32_t i = 0; i < request_.waiting; ++i) QUIRE_TRY_STATUS(submit());
    BenchSchedulerReport report;
    report.steady = measure(0);
    if (request_.waiting == 0) return report;
    // A queue that stays as long as it was.
    for (std::int32_t i = 0; i < request_.steps; ++i) QUIRE_TRY_STATUS(submit());
    report.turnover = measure(1);
    QUIRE_CHECK(scheduler_->waiting() >= request_.waiting / 2, "{} wait", scheduler_->waiting());
    return report;
  }

 private:
  // A whole prompt in one step, or turnover would run out of sequences that decode.
  std::int32_t chunk_tokens() const { return std::max(kLeastChunk, request_.context); }
  // The first sequence decodes while the others' prompts come, one or more in a step, and runs in the last
  // step.
  std::int32_t tokens_each() const {
    return request_.context + 4 * request_.steps + 4 * request_.running + 64;
  }

  const scheduler::StepPlan& planned() const {
    QUIRE_CHECK(flying_ != nullptr, "no step can be made, {} run and {} wait", scheduler_->running(),
                scheduler_->waiting());
    return *flying_;
  }

  Status make_scheduler() {
    const std::int64_t stride = request_.page_tokens;
    const std::int64_t bytes = std::int64_t{request_.running + 8} * (tokens_each() + 2 * stride);
    kv::PoolConfig config;
    QUIRE_TRY(plan, kv::plan_slabs(std::span(&stride, 1), bytes));
    config.plan = plan;
    config.slabs = bytes / plan.slab_bytes + 1;
    config.groups = {{"full", {kv::Keep::all, 0, request_.page_tokens}}};
    QUIRE_TRY(pool, kv::PagePool::create(std::move(config)));
    pool_ = std::move(pool);
    const std::int32_t most_waiting = request_.running + request_.waiting + request_.steps;
    scheduler::SchedulerConfig limits{request_.running, chunk_tokens(), tokens_each(),
                                      std::max(1, most_waiting)};
    limits.policy = request_.policy;
    QUIRE_TRY(scheduler, scheduler::Scheduler::create(limits, *pool_));
    scheduler_ = std::move(scheduler);
    return {};
  }

  Status submit() {
    // Half of the prompt is one of 16 prefixes. Room for the whole answer: the scheduler reads in place.
    constexpr std::uint32_t kPrefixes = 16;
    std::vector<std::int32_t>& tokens = tokens_.emplace_back();
    tokens.reserve(static_cast<std::size_t>(tokens_each()) + 1);
    for (std::int32_t i = 0; i < request_.context; ++i) {
      const std::uint32_t content = i < request_.context / 2 ? next_id_ % kPrefixes : kPrefixes + next_id_;
      tokens.push_back(static_cast<std::int32_t>(mix(content, static_cast<std::uint64_t>(i)) >> 33));
    }
    scheduler::RequestInfo info;
    info.tokens = tokens.data();
    info.priority = static_cast<std::int32_t>(next_id_ % 4);
    info.sequence = SequenceId{next_id_++};
    info.prompt_tokens = request_.context;
    info.max_new_tokens = tokens_each() - request_.context;
    return scheduler_->submit(info);
  }

  // One step; the first `ends` of its rows that yield a token end their sequences.
  double step(int ends) {
    results_.clear();
    for (const scheduler::PlanRow& row : planned().rows) {
      const bool ended =
          row.kind == scheduler::RowKind::decode && scheduler_->is_live(row.sequence) && ends > 0;
      ends -= ended ? 1 : 0;
      if (row.yields_token) tokens_[row.sequence.value - 1].push_back(row.output_index);
      results_.push_back({row.yields_token ? 1 : 0, ended});
    }
    const Clock::time_point begin = Clock::now();
    flying_ = timed_step(*scheduler_, results_);
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  StepTimes measure(int ends) {
    std::vector<double> us;
    for (std::int32_t s = 0; s < request_.steps; ++s) {
      QUIRE_CHECK(ends > 0 || planned().decode_rows == request_.running, "{} of {} decode",
                  planned().decode_rows, request_.running);
      us.push_back(step(ends));
    }
    return times_of(us);
  }

  BenchSchedulerRequest request_;
  std::deque<std::vector<std::int32_t>> tokens_;  // by sequence
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  const scheduler::StepPlan* flying_ = nullptr;
  std::vector<scheduler::RowResult> results_;
  std::uint32_t next_id_ = 1;
};

}  // namespace

Result<BenchSchedulerReport> bench_scheduler(const BenchSchedulerRequest& request) {
  QUIRE_TRY_STATUS(check(request));
  return Bench(request).run();
}

}  // namespace quire::simulate
