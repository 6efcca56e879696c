#include <utility>

#include "base/check.h"
#include "model/families.h"
#include "model/model.h"
#include "model/weights.h"

namespace quire::model {

Result<std::unique_ptr<Model>> load_model(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                          const ops::Ops& ops, platform::Device& device,
                                          const LoadOptions& options, Determinism level) {
  QUIRE_TRY(weights, load_weights(spec, checkpoint, ops, device, options));
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

}  // namespace quire::model
