// The parts that families are made of. Each enqueues a handful of operations; none keeps state.
#pragma once

#include "model/step.h"
#include "model/weights.h"

namespace quire::model {

// Dims [begin, begin + count) of every head of [rows, heads, dim].
TensorView head_dims(TensorView heads, std::int64_t begin, std::int64_t count);

// y = x / rms(x) * weight; with a non-empty `add`, x += add first. An empty y: only the sum.
void rms_norm(const Step& step, TensorView x, TensorView add, const float* weight, TensorView y);

// What products of quantised weights may do to activations: what the checkpoint was made for.
inline ops::RowRounding x_rounding(const ModelSpec& spec) {
  return spec.quant ? ops::RowRounding::e4m3 : ops::RowRounding::none;
}

// y = x W^T + bias.
void linear(const Step& step, TensorView x, const WeightView& weight, const float* bias, TensorView y);

// Attention over the layer's cache with biases, q and k norms, rope and sinks as the spec has them:
// step.b.normed -> step.b.branch.
void attention_block(const Step& step, int layer, const LayerWeights& weights, const KvView& kv);

// down(act(gate(x), up(x))) -> y. x and y may not overlap.
void mlp(const Step& step, const MlpWeights& weights, TensorView x, TensorView y);

// Routed experts of x -> y, plus the shared expert when there is one.
void moe(const Step& step, const LayerWeights& weights, TensorView x, TensorView y);

}  // namespace quire::model
