#include "simulate/bench.h"

#include <gtest/gtest.h>

namespace quire::simulate {
namespace {

// The only sequence ends in every turnover step, so nothing runs when the next one is planned.
TEST(BenchScheduler, FewRunningTurnOver) {
  for (const std::int32_t running : {1, 2, 3}) {
    for (const std::int32_t waiting : {0, 1, 7}) {
      for (const scheduler::Policy policy : {scheduler::Policy::fcfs, scheduler::Policy::longest_prefix}) {
        BenchSchedulerRequest request;
        request.running = running;
        request.waiting = waiting;
        request.context = 40;
        request.steps = 20;
        request.policy = policy;
        const Result<BenchSchedulerReport> report = bench_scheduler(request);
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_GT(report->steady.us, 0.0);
        EXPECT_EQ(report->turnover.us > 0.0, waiting > 0) << running << " running, " << waiting << " waiting";
      }
    }
  }
}

// Who decodes first must outlast the prompts of all others, however long they are.
TEST(BenchScheduler, LongPromptsAreAllThereBeforeTheFirstEnds) {
  for (const std::int32_t running : {2, 8}) {
    BenchSchedulerRequest request;
    request.running = running;
    request.waiting = 3;
    request.context = 1 << 17;
    request.page_tokens = 256;
    request.steps = 4;
    const Result<BenchSchedulerReport> report = bench_scheduler(request);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_GT(report->steady.us, 0.0);
    EXPECT_GT(report->turnover.us, 0.0);
  }
}

TEST(BenchScheduler, RefusesWhatIsOutside) {
  BenchSchedulerRequest request;
  request.running = 0;
  EXPECT_EQ(bench_scheduler(request).error().code, Code::bad_input);
}

}  // namespace
}  // namespace quire::simulate
