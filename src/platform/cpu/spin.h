// Waiting in two steps: a short spin, then sleep.
#pragma once

#include <chrono>

namespace quire::platform::cpu {

// Between two loops of a decode step lies a little single-threaded work (norms, rope) of a few microseconds
// to some tens, and to wake a sleeping thread takes the kernel about as long again. A spin that spans the
// usual gap saves most of those wakes; one that lasted longer would take a core from whoever shares it, and
// server and compute share few cores. So a helper stays awake through a step and no longer. An estimate, not
// a measurement.
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
