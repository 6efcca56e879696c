#include "record/tap.h"

#include "base/check.h"
#include "base/clock.h"

namespace quire::record {

void Tap::plan(const attention::StepShape& shape, attention::PlanBuffer buffer, platform::Stream& stream) {
  inner_.plan(shape, buffer, stream);
  if (step_.shadow != nullptr && step_.shadow->serves(index_)) step_.shadow->plan(index_, shape, stream);
}

std::int32_t Tap::layer() const {
  const std::size_t runs = leader_ == nullptr ? runs_ : leader_->runs_;
  QUIRE_CHECK(runs >= 1 && runs <= layers_.size(), "call {} runs {} times over {} layers", index_, runs,
              layers_.size());
  return layers_[runs - 1];
}

void Tap::run(const attention::StepShape& shape, const attention::Args& args, attention::PlanBuffer buffer,
              platform::Stream& stream) {
  const bool shadowed = step_.shadow != nullptr && step_.shadow->serves(index_);
  if (shadowed) stream.synchronize();
  const Clock::time_point begin = shadowed ? Clock::now() : Clock::time_point();
  inner_.run(shape, args, buffer, stream);
  if (step_.recorder == nullptr && step_.shadow == nullptr) return;
  ++runs_;
  if (step_.recorder == nullptr && !shadowed) return;
  stream.synchronize();
  const double seconds = shadowed ? seconds_since(begin) : 0.0;
  const std::int32_t first_token = decode_ ? 0 : step_.decode_q;
  if (step_.recorder != nullptr) step_.recorder->call(index_, layer(), first_token, shape, args, stream);
  if (shadowed) step_.shadow->run(index_, layer(), first_token, seconds, shape, args, stream);
}

}  // namespace quire::record
