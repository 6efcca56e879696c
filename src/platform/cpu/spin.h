// Waiting in two steps: a short spin, then sleep.
#pragma once

#include <chrono>

namespace quire::platform::cpu {

// Between two loops of a decode step lie 5 to 30 microseconds of single-threaded work (norms, rope), and
// waking a sleeping thread costs 30 to 60 (measured on a 2-core EPYC guest, November 2026). So a helper
// stays awake through a step and no longer: server and compute share few cores.
inline constexpr std::chrono::microseconds kSpin{40};

inline void relax() { __builtin_ia32_pause(); }

// Calls ready() until it is true or kSpin is over; returns the last answer.
template <class Ready>
bool spin_until(Ready&& ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      relax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace quire::platform::cpu
