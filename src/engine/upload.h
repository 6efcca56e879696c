// Upload: a StepPlan as device inputs. Fills the pinned side of this step and enqueues one copy of what it
// used; slots that open get their sampling parameters by copies of their own (admissions only, never a steady
// step).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/executor.h"
#include "engine/parts.h"
#include "engine/requests.h"
#include "scheduler/step_plan.h"

namespace quire::engine {

// A step on its way: what the host keeps until its results are taken in.
struct Flight {
  const scheduler::StepPlan* plan = nullptr;
  std::vector<std::int32_t> logit_of;       // per row: its index in the results' tokens; -1: none
  std::vector<std::int32_t> extend_prefix;  // of extend rows, for launch
  std::vector<std::int32_t> extend_q_len;
  StepLaunch launch;
  std::int32_t scored_end = 0;     // flat rows below it may have scores
  std::int32_t score_top_end = 0;  // entries of the top lists in use
  std::int32_t logprobs = -1;      // most likely tokens wanted of sampled rows; -1: not even their own
  bool guided = false;             // a row that yields a token has a guide
  std::int32_t masks = 0;          // rows of upload.masks in use

  // So that nothing allocates later.
  void reserve(std::int32_t max_batch);
};

// Whether logits of the row are prompt positions to be scored.
bool scores(const scheduler::PlanRow& row, const Live& live);
// First flat token row whose logits are wanted.
std::int32_t first_logit_row(const scheduler::PlanRow& row);

void upload_step(const scheduler::StepPlan& plan, EngineParts& parts, Requests& requests, Flight& flight);

// Asks the guides what may come next and enqueues the copy of their masks: after the forward pass, which runs
// meanwhile.
void upload_masks(EngineParts& parts, Requests& requests, Flight& flight);

}  // namespace quire::engine
