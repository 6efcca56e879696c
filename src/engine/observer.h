// Observer: --record and --shadow over an engine's attention calls. An engine without either has none, and
// its steps know nothing of it. Steps that are watched run eagerly and wait for the device around every
// attention call; the others go as ever. Results are the same in both.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/contract.h"
#include "base/result.h"
#include "engine/ledger.h"
#include "engine/resolve.h"
#include "platform/platform.h"
#include "quire/engine.h"
#include "quire/options.h"
#include "record/recorder.h"
#include "record/shadow.h"
#include "record/tap.h"

namespace quire::engine {

struct EngineParts;
struct Flight;
class Requests;

class Observer {
 public:
  // Null when the options ask for neither. Touches no file; its lines go into the spec's trace.
  static Result<std::unique_ptr<Observer>> create(const Options& options, EngineSpec& spec,
                                                  std::span<const attention::Backend> table,
                                                  platform::Device& device);

  // What the shadow row holds. limits: per call.
  void list(const EngineSpec& spec, std::span<const attention::Limits> limits, Ledger& ledger) const;
  // The instance that the model is given for call `index`; lives as long as this.
  attention::Attention* tap(std::size_t index, attention::Attention& inner, const EngineSpec& spec);
  // Takes the memory that list() announced and makes the record's file.
  Status open(const std::string& architecture, const EngineSpec& spec,
              std::span<const attention::Limits> limits, platform::Device& device);

  // Before the forward of a step. True when the step is watched: it has to run eagerly.
  bool begin_step(const Flight& flight, Requests& requests);
  // After all of a watched step is on the stream; waits for it.
  void end_step(const Flight& flight, EngineParts& parts);

  // step_s: what all steps took so far, the watching included.
  void report(double step_s, EngineStats& stats) const;

 private:
  Observer() = default;

  record::TapStep step_;
  std::vector<std::unique_ptr<record::Tap>> taps_;
  std::optional<record::RecorderOptions> record_;
  std::unique_ptr<record::Recorder> recorder_;
  std::unique_ptr<record::Shadow> shadow_;
  record::OutcomeFrame outcome_;
};

}  // namespace quire::engine
