// ModelBase: what every family does alike: owning spec, weights and views, laying out activations, embedding
// and logits. A family is a subclass with a straight-line layers().
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/attend.h"
#include "model/blocks.h"
#include "model/model.h"
#include "model/step.h"
#include "model/weights.h"

namespace quire::model {

class ModelBase : public Model {
 public:
  ModelBase(const ModelSpec& spec, Weights weights) : spec_(spec), weights_(std::move(weights)) {}

  const ModelSpec& spec() const override { return spec_; }
  std::int64_t lookup_bytes() const override {
    return spec_.tied ? 0 : weights_.embed.rows * weights_.embed.row_bytes;
  }
  std::int64_t activation_bytes(const ModelLimits& limits) const override;
  void set_activations(void* data, std::int64_t bytes, const ModelLimits& limits) override;
  void set_kv(std::span<const std::vector<KvView>> views) override;
  void forward(const StepContext& context, const StepInputs& inputs, TensorView hidden) override;
  void logits(const StepContext& context, TensorView hidden, TensorView logits) override;

 protected:
  // From step.b.residual (the embeddings) to `hidden`, behind the final norm.
  virtual void layers(const Step& step, TensorView hidden) = 0;
  // The family's own activations and what it prepares per step; the base has planned the calls it names here.
  virtual std::int64_t family_bytes(const ModelLimits&) const { return 0; }
  virtual void set_family_activations(void*, const ModelLimits&) {}
  virtual void begin_step(const StepContext&, const StepInputs&) {}
  virtual PlanPhases planned() const { return {}; }

  const LayerWeights& layer_weights(std::size_t layer) const { return weights_.layers[layer]; }
  const float* final_norm() const { return weights_.final_norm; }
  // The view of a model layer's cache.
  const KvView& kv(std::size_t layer) const;
  // The norm that follows layer `layer`: the next layer's first, or the final one.
  const float* next_norm(std::size_t layer) const;
  // Where that norm's result goes: the next layer's input, or `hidden`.
  TensorView next_input(const Step& step, std::size_t layer, TensorView hidden) const;

 private:
  void rope_angles(const StepContext& context, const StepInputs& inputs, const Buffers& b);

  const ModelSpec spec_;
  const Weights weights_;
  std::vector<std::vector<KvView>> kv_;  // [group][layer in group]
  Buffers buffers_;
  std::int32_t max_total_q_ = 0;
};

}  // namespace quire::model
