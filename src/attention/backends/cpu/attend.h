// Runs the units of a plan: finds the cache rows of each tile, has a kernel table compute, joins splits.
#pragma once

#include "attention/backends/cpu/kernel.h"
#include "attention/backends/cpu/plan.h"
#include "attention/contract.h"

namespace quire::attention::cpu {

// What every unit of one run shares.
struct AttendContext {
  const Geometry* geometry = nullptr;
  const Kernels* kernels = nullptr;
  const StepShape* shape = nullptr;
  const Args* args = nullptr;
  const PlanLayout* layout = nullptr;
  KvSource source = KvSource::paged;
};

// On one thread of the team. `next`: what the thread will probably be given then, null if nothing; its first
// keys are on their way to the cache when it comes.
void attend(const AttendContext& context, const Work& work, const Work* next, int thread);

// Rows of the step that belong to no sequence: out = 0, lse = -inf.
void clear_outside(const AttendContext& context);

}  // namespace quire::attention::cpu
