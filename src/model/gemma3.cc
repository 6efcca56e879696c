// Gemma 3: a norm before and after each block, scaled embeddings, two ropes and two KV groups.
#include <utility>

#include "model/families.h"
#include "model/model_base.h"

namespace quire::model {
namespace {

class Gemma3 : public ModelBase {
 public:
  using ModelBase::ModelBase;

 private:
  void layers(const Step& step, TensorView hidden) override {
    const Buffers& b = step.b;
    for (std::size_t i = 0; i < spec().layers.size(); ++i) {
      const LayerWeights& w = layer_weights(i);
      attention_block(step, static_cast<int>(i), w, kv(i));
      rms_norm(step, b.branch, {}, w.post_attn_norm, b.branch);
      rms_norm(step, b.residual, b.branch, w.ffn_norm, b.normed);
      mlp(step, w.mlp, b.normed, b.branch);
      rms_norm(step, b.branch, {}, w.post_ffn_norm, b.branch);
      rms_norm(step, b.residual, b.branch, next_norm(i), next_input(step, i, hidden));
    }
  }
};

}  // namespace

std::unique_ptr<Model> make_gemma3(const ModelSpec& spec, Weights weights) {
  return std::make_unique<Gemma3>(spec, std::move(weights));
}

}  // namespace quire::model
