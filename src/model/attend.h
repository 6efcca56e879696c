// Attention of a step: its rows are decode rows, then extend rows, and each phase is a call of its own.
#pragma once

#include <cstdint>

#include "model/step.h"

namespace quire::model {

// Index into StepContext::calls (the order of attention_calls()).
std::size_t decode_call(int group);
std::size_t extend_call(int group);

// The shape of a phase with the group's mask in it.
attention::StepShape masked(attention::StepShape shape, const GroupSpec& group);

// What a call reads and writes besides the shape: rows of one phase.
attention::Args attention_args(const ModelSpec& spec, TensorView q, TensorView out, const KvView& kv,
                               const float* sink);

// Plans decode and, unless the model extends in another way, extend of every group. Once per step.
struct PlanPhases {
  bool extend = true;
};
void plan_attention(const StepContext& context, const StepInputs& inputs, const ModelSpec& spec,
                    PlanPhases phases);

// Runs one phase of a layer over all rows of the step: it takes its own. q [rows, heads, dim], out likewise.
void attend_decode(const Step& step, int group, TensorView q, TensorView out, const KvView& kv,
                   const float* sink);
void attend_extend(const Step& step, int group, TensorView q, TensorView out, const KvView& kv,
                   const float* sink);

}  // namespace quire::model
