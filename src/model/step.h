// Step: what the straight-line code of every family sees of one step. Made by ModelBase::forward, gone after
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/activations.h"
#include "model/model.h"

namespace quire::model {

// The activations that families share; those a model does not need are empty. In ModelBase they have
// max_total_q rows, in a Step the step's rows.
struct Buffers {
  TensorView residual;             // [rows, hidden] the stream that layers add to
  TensorView normed;               // [rows, hidden] input of attention or MLP
  TensorView branch;               // [rows, hidden] what attention or MLP adds
  TensorView q;                    // [rows, q_heads * qk_dim]
  TensorView k;                    // [rows, kv_heads * qk_dim]
  TensorView v;                    // [rows, kv_heads * v_dim]
  TensorView attended;             // [rows, q_heads * v_dim]
  TensorView gate, up;             // [rows, widest dense MLP]
  TensorView shared;               // [rows, hidden] of the shared expert
  TensorView router;               // [rows, experts]
  std::int32_t* expert = nullptr;  // [rows, top_k]
  float* expert_weight = nullptr;  // [rows, top_k]
  std::vector<float*> cos_sin;     // per rope [rows, rotary_dim]

  // `type`: the compute type.
  static Buffers plan(Region& region, const ModelSpec& spec, std::int64_t rows, DType type);
  Buffers first_rows(std::int64_t rows) const;
};

struct Step {
  const StepContext& context;
  const StepInputs& inputs;
  const ModelSpec& spec;
  Buffers b;

  ops::Ops& ops() const { return context.ops; }
  platform::Stream& stream() const { return context.stream; }
  std::int64_t rows() const { return inputs.total_q; }
};

}  // namespace quire::model
