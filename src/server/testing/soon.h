// For tests: waits for what another thread or process makes true.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace quire::server {

// False when it does not become true in time.
template <class Predicate>
bool soon(Predicate predicate, Clock::duration time = std::chrono::seconds(20)) {
  const Clock::time_point deadline = Clock::now() + time;
  while (!predicate()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace quire::server
