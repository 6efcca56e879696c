// resolve(): from what the user asked, what the model is and what the device offers to what will run. One
// pure function; it touches no device and no weights, so `quire backends MODEL` shows exactly what an engine
// would do. Every value of the user is kept or refused with the nearest legal change; none is rewritten.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/select.h"
#include "base/determinism.h"
#include "base/result.h"
#include "kv/prefix_tree.h"
#include "model/model.h"
#include "model/spec.h"
#include "platform/platform.h"
#include "quire/options.h"
#include "scheduler/waiting_list.h"
#include "tensor/dtype.h"
#include "tensor/kv_format.h"

namespace quire::engine {

// What an engine does, decided once. The only thing left open is the number of KV pages: the ledger closes
// it.
struct EngineSpec {
  platform::Kind platform = platform::Kind::cpu;
  platform::ThreadPlan threads;
  DType compute = DType::f32;
  Determinism level = Determinism::none;        // of the formulation: decides the model's attention calls
  Determinism required = Determinism::none;     // what the user asked for; rows and ops below it are refused
  Determinism determinism = Determinism::none;  // of the engine: the least of its calls and its ops
  std::vector<model::KvGroup> groups;
  std::vector<KvFormat> kv_formats;  // per group
  float kv_scale = 1.0f;             // of KvScaleKind::tensor
  attention::Selection selection;    // picks in the order of model::attention_calls()
  std::int32_t max_context = 0;      // tokens of prompt and output
  std::int32_t max_running = 0;      // sequences in one step
  std::int32_t chunk_tokens = 0;     // most prompt tokens of one step
  std::int64_t kv_memory_bytes = 0;  // 0: the ledger decides
  bool prefix_cache = true;
  kv::EvictionPolicy eviction = kv::EvictionPolicy::lru;
  scheduler::Policy schedule = scheduler::Policy::fcfs;
  std::int64_t target_step_us = 0;  // 0: none
  std::int32_t max_waiting = 0;
  bool graphs = true;
  bool overlap = true;
  bool dummy = false;
  std::vector<std::string> trace;  // "page size 64: recommended by cpu"

  std::int32_t page_size() const { return selection.page_size; }
  std::int32_t max_total_q() const { return max_running + chunk_tokens; }  // token rows of a step
};

// `cores`: hardware threads this process may use. REQUIRES options.threads is legal or refused here.
Result<platform::ThreadPlan> plan_threads(const Options& options, int cores);

// The values that can be judged without a model: names of types, levels, policies and rows.
Status check_options(const Options& options, const platform::DeviceInfo& device,
                     std::span<const attention::Backend> table);

Result<EngineSpec> resolve(const Options& options, const model::ModelSpec& model,
                           const platform::DeviceInfo& device, std::span<const attention::Backend> table);

}  // namespace quire::engine
