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

// Unit `unit` for one lane (KV head and block of its query heads), on one thread of the team.
void attend(const AttendContext& context, std::int64_t unit, std::int32_t lane, int thread);

// Rows of the step that belong to no sequence: out = 0, lse = -inf.
void clear_outside(const AttendContext& context);

}  // namespace quire::attention::cpu
