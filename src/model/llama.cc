// Llama, and what differs from it by flags of the spec only: Mistral (windows), Qwen2 (biases), Qwen3 (q and
// k norms).
#include <utility>

#include "model/families.h"
#include "model/model_base.h"

namespace quire::model {
namespace {

class Llama : public ModelBase {
 public:
  using ModelBase::ModelBase;

 private:
  void layers(const Step& step, TensorView hidden) override {
    const Buffers& b = step.b;
    for (std::size_t i = 0; i < spec().layers.size(); ++i) {
      const LayerWeights& w = layer_weights(i);
      attention_block(step, static_cast<int>(i), w, kv(i));
      rms_norm(step, b.residual, b.branch, w.ffn_norm, b.normed);
      mlp(step, w.mlp, b.normed, b.branch);
      rms_norm(step, b.residual, b.branch, next_norm(i), next_input(step, i, hidden));
    }
  }
};

}  // namespace

std::unique_ptr<Model> make_llama(const ModelSpec& spec, Weights weights) {
  return std::make_unique<Llama>(spec, std::move(weights));
}

}  // namespace quire::model
