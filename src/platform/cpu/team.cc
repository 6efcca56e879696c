#include "platform/cpu/team.h"

#include <system_error>

#include "base/check.h"
#include "platform/cpu/spin.h"

namespace quire::platform::cpu {

WorkerTeam::WorkerTeam(int threads) {
  QUIRE_CHECK(threads >= 1, "threads={}", threads);
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { helper_loop(i); });
  } catch (const std::system_error&) {
    join();  // no destructor runs for a half-built team, and a thread that nobody joins ends the program
    throw;
  }
}

WorkerTeam::~WorkerTeam() { join(); }

void WorkerTeam::join() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerTeam::work(int thread) {
  std::int64_t left = remaining_.value.load(std::memory_order_relaxed);
  while (left > 0) {
    if (!remaining_.value.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                                std::memory_order_relaxed)) {
      continue;
    }
    // The exchange made this index ours, of whichever loop is in progress, which cannot end before it.
    body_(context_, count_ - left, thread);
    finished_.value.fetch_add(1, std::memory_order_release);
    left = remaining_.value.load(std::memory_order_relaxed);
  }
}

void WorkerTeam::run(std::int64_t count, Body body, void* context) {
  if (count <= 1 || helpers_.empty()) {
    for (std::int64_t i = 0; i < count; ++i) body(context, i, 0);
    return;
  }
  body_ = body;
  context_ = context;
  count_ = count;
  finished_.value.store(0, std::memory_order_relaxed);
  remaining_.value.store(count);  // sequentially consistent, as is the look at sleepers_: no lost wake-up
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  work(0);
  const auto all_done = [&] { return finished_.value.load(std::memory_order_acquire) == count; };
  // Whoever still holds an index is computing it: it is the length of one item away, unless the system
  // took the core from him, and then yielding is what gives it back.
  while (!spin_until(all_done)) std::this_thread::yield();
}

void WorkerTeam::helper_loop(int thread) {
  const auto called = [&] {
    return remaining_.value.load(std::memory_order_relaxed) > 0 || stop_.load(std::memory_order_relaxed);
  };
  while (!stop_.load(std::memory_order_relaxed)) {
    work(thread);
    if (spin_until(called)) continue;
    const int seen = wake_.load();
    sleepers_.fetch_add(1);
    if (remaining_.value.load() == 0 && !stop_.load()) wake_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

}  // namespace quire::platform::cpu
