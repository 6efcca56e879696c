// Tap: stands between a model and a backend instance and tells recorder and shadow what went through. Only
// an engine that records or shadows has taps; in its other steps, and while graphs are recorded, a tap does
// nothing but pass the call on.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "attention/contract.h"
#include "record/recorder.h"
#include "record/shadow.h"

namespace quire::record {

// What the step in progress is for, shared by all taps of an engine.
struct TapStep {
  Recorder* recorder = nullptr;  // null: not recorded
  Shadow* shadow = nullptr;      // null: not shadowed
  std::int32_t decode_q = 0;     // token rows of the decode calls; the others' follow them
};

class Tap final : public attention::Attention {
 public:
  // layers: of the model, in the order in which the call visits them. leader: the call whose count tells the
  // layer, for a call that a layer makes any number of times; null: this one, once a layer.
  Tap(attention::Attention& inner, std::uint32_t index, bool decode, std::vector<std::int32_t> layers,
      const Tap* leader, const TapStep& step)
      : inner_(inner),
        index_(index),
        decode_(decode),
        layers_(std::move(layers)),
        leader_(leader),
        step_(step) {}

  void begin_step() { runs_ = 0; }

  std::int64_t workspace_bytes(const attention::Limits& limits) const override {
    return inner_.workspace_bytes(limits);
  }
  void plan(const attention::StepShape& shape, attention::PlanBuffer buffer,
            platform::Stream& stream) override;
  void run(const attention::StepShape& shape, const attention::Args& args, attention::PlanBuffer buffer,
           platform::Stream& stream) override;

 private:
  std::int32_t layer() const;

  attention::Attention& inner_;
  std::uint32_t index_;
  bool decode_;
  std::vector<std::int32_t> layers_;
  const Tap* leader_;
  const TapStep& step_;
  std::size_t runs_ = 0;  // of this step
};

}  // namespace quire::record
