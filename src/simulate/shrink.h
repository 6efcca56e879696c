// shrink(): the smallest part of a trace that still fails, by delta debugging (Zeller and Hildebrandt,
// "Simplifying and Isolating Failure-Inducing Input", 2002): chunks of requests are left out, ever smaller
// ones, as long as the rest fails; then faults and lengths of those that are left are simplified.
#pragma once

#include <functional>

#include "simulate/trace.h"

namespace quire::simulate {

// Whether a run of the trace goes wrong. The caller decides what that means and survives it.
using Fails = std::function<bool(const Trace&)>;

struct Shrunk {
  Trace trace;
  int trials = 0;
};

// REQUIRES fails(trace). Stops after max_trials calls of `fails` with what it has.
Shrunk shrink(const Trace& trace, const Fails& fails, int max_trials);

// The requests at these indices, with only the segments that they use.
Trace subset(const Trace& trace, const std::vector<std::size_t>& indices);

}  // namespace quire::simulate
