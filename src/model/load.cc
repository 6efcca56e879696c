#include <utility>

#include "base/check.h"
#include "model/families.h"
#include "model/model.h"
#include "model/weights.h"

namespace quire::model {

namespace {

std::unique_ptr<Model> make_family(const ModelSpec& spec, Weights weights, platform::Device& device,
                                   Determinism level) {
  switch (spec.family) {
    case Family::llama:
      return make_llama(spec, std::move(weights));
    case Family::gemma3:
      return make_gemma3(spec, std::move(weights));
    case Family::gpt_oss:
      return make_gpt_oss(spec, std::move(weights));
    case Family::deepseek_v3:
      return make_deepseek_v3(spec, std::move(weights), device, level);
  }
  QUIRE_CHECK(false, "family={}", static_cast<int>(spec.family));
}

}  // namespace

std::unique_ptr<Model> outline_model(const ModelSpec& spec, platform::Device& device, Determinism level) {
  return make_family(spec, Weights{}, device, level);
}

Result<std::unique_ptr<Model>> load_model(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                          const ops::Ops& ops, platform::Device& device,
                                          const LoadOptions& options, Determinism level) {
  QUIRE_TRY(weights, load_weights(spec, checkpoint, ops, device, options));
  return make_family(spec, std::move(weights), device, level);
}

}  // namespace quire::model
