// gpt-oss: sinks, alternating windows, and experts in place of the MLP.
#include <utility>

#include "base/check.h"
#include "model/families.h"
#include "model/model_base.h"

namespace quire::model {
namespace {

class GptOss : public ModelBase {
 public:
  using ModelBase::ModelBase;

 private:
  void layers(const Step& step, TensorView hidden) override {
    const Buffers& b = step.b;
    for (std::size_t i = 0; i < spec().layers.size(); ++i) {
      const LayerWeights& w = layer_weights(i);
      attention_block(step, static_cast<int>(i), w, kv(i));
      rms_norm(step, b.residual, b.branch, w.ffn_norm, b.normed);
      moe(step, w, b.normed, b.branch);
      rms_norm(step, b.residual, b.branch, next_norm(i), next_input(step, i, hidden));
    }
  }
};

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const ModelSpec& spec, Weights weights) {
  QUIRE_CHECK(spec.swiglu_alpha == 1.702, "the operation's own alpha is 1.702, the spec has {}",
              spec.swiglu_alpha);
  return std::make_unique<GptOss>(spec, std::move(weights));
}

}  // namespace quire::model
