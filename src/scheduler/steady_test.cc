// A steady decode step allocates nothing: operator new of this test program counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kv/audit.h"
#include "scheduler/scheduler.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// noinline: GCC would else see malloc and free cross over from new to delete and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace quire::scheduler {
namespace {

TEST(SteadyState, DecodeAllocatesNothing) {
  kv::PoolConfig config;
  const std::vector<std::int64_t> strides = {128, 64};
  config.plan = *kv::plan_slabs(strides, 1 << 20);
  config.slabs = (1 << 20) / config.plan.slab_bytes;
  config.groups = {{"full", {kv::Keep::all, 0, 4}}, {"window", {kv::Keep::window, 16, 4}}};
  config.record_freed = true;
  const std::unique_ptr<kv::PagePool> pool = kv::PagePool::create(std::move(config)).value();
  const std::unique_ptr<Scheduler> scheduler = Scheduler::create({8, 32, 400, 8}, *pool).value();
  for (std::uint32_t id = 1; id <= 8; ++id) {
    ASSERT_TRUE(scheduler->submit({SequenceId{id}, 20 + static_cast<std::int32_t>(id), 300, false}).ok());
  }
  std::vector<RowResult> results;
  results.reserve(8);
  const StepPlan* ahead = scheduler->plan();
  long counted = 0;
  for (int step = 0; step < 250; ++step) {
    const long before = allocations;
    const StepPlan* next = scheduler->plan();
    results.clear();
    for (const PlanRow& row : ahead->rows) results.push_back({row.yields_token ? 1 : 0, false});
    scheduler->commit(results);
    pool->take_freed();
    const bool clean = kv::check_step(*pool, scheduler->table(), next->updates).empty();
    if (step >= 20) counted += allocations - before;
    ASSERT_TRUE(clean);
    ASSERT_EQ(next->retracted.size(), 0u);
    ahead = next;
  }
  EXPECT_EQ(ahead->decode_rows, 8);
  EXPECT_EQ(counted, 0);
  EXPECT_GT(allocations.load(), 0);
}

}  // namespace
}  // namespace quire::scheduler
