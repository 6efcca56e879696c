// EngineParts: everything an engine owns below its loop, put together in the order that the ledger needs:
// decide (resolve), list every byte, check the sum against the machine, allocate, bind, record. Plain
// ownership: the destructor waits for the stream, then members go in reverse order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/contract.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "engine/crash_note.h"
#include "engine/executor.h"
#include "engine/kv_plan.h"
#include "engine/ledger.h"
#include "engine/observer.h"
#include "engine/resolve.h"
#include "engine/step_buffers.h"
#include "model/model.h"
#include "ops/ops.h"
#include "platform/platform.h"
#include "quire/options.h"

namespace quire::engine {

// Builds that check: fresh memory holds NaN (the platform sees to it), and freed pages do again.
#if defined(QUIRE_SANITIZED) || !defined(__OPTIMIZE__)
inline constexpr bool kPoison = true;
#else
inline constexpr bool kPoison = false;
#endif

struct EngineParts {
  EngineSpec spec;
  KvPlan kv;
  Ledger ledger;
  std::vector<std::string> notes;
  CrashNoteEntry crash_note;

  std::unique_ptr<checkpoint::Checkpoint> checkpoint;
  std::unique_ptr<platform::Device> device;
  std::unique_ptr<ops::Ops> ops;
  std::unique_ptr<platform::Buffer> ops_memory;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<platform::Buffer> activations;
  std::unique_ptr<platform::Buffer> kv_scales;  // two floats, for KvScaleKind::tensor
  std::unique_ptr<platform::Arena> arena;
  std::vector<std::vector<ops::PageCopyLayer>> copy_layers;  // per KV group: layers with pages of their own
  std::vector<std::unique_ptr<attention::Attention>> attentions;  // per call
  std::vector<std::unique_ptr<platform::Buffer>> plan_memory;     // per call
  std::unique_ptr<Observer> observer;                             // null: nobody records or shadows
  std::vector<model::BoundCall> calls;
  std::unique_ptr<StepBuffers> buffers;
  std::array<std::unique_ptr<platform::Event>, 2> events;  // step n came back
  std::unique_ptr<platform::Stream> stream;
  std::unique_ptr<Executor> executor;

  ~EngineParts();
};

// What an engine would be and hold, without loading or allocating it; a config.json alone is enough.
struct EngineSurvey {
  std::string architecture;
  std::int32_t layers = 0;
  std::int64_t parameters = 0;
  std::int64_t weights_bytes = 0;  // mapped and private
  EngineSpec spec;
  KvPlan kv;
  Ledger ledger;
  std::int64_t available_bytes = 0;  // on the device now
  std::vector<std::string> notes;
};
Result<EngineSurvey> survey(const std::string& model, const Options& options);

// table: the rows to choose from; empty: those of this build. Outlives the parts.
Result<std::unique_ptr<EngineParts>> assemble(const std::string& model, const Options& options,
                                              std::span<const attention::Backend> table = {});

}  // namespace quire::engine
