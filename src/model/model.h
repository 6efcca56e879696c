// Model: bound weights and a straight-line forward. One file per family; the parts that families share
// (attention over the two phases, MLPs, experts) are in attend.h and blocks.h. Nothing here knows requests,
// pages or schedules: a step is StepInputs, a dozen device views.
//
// Life: ModelSpec (spec.h) -> attention_calls(), kv_groups() -> selection and ledger (engine) ->
// load_model() -> forward() per step. forward() only enqueues; it is the same code captured and eager.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/contract.h"
#include "attention/select.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "platform/platform.h"

namespace quire::model {

// ---- what the spec alone says (no weights, no device) --------------------------------------------------

// One KV group: the layers that share a page table.
struct KvGroup {
  std::string name;  // "full", "window", "latent"
  attention::MaskKind mask = attention::MaskKind::causal;
  std::int32_t mask_width = 0;       // window or chunk; 0: all keys stay
  std::vector<std::int32_t> layers;  // model layer of each layer of the group
  std::vector<KvLayerShape> shapes;  // as in KvLayout
};
std::vector<KvGroup> kv_groups(const ModelSpec& spec);

// The attention calls of a step in the order of CallId below: for each group "<group>.decode" and
// "<group>.extend"; latent models below schedule_invariant extend by "mla.own" and "mla.prefix" (dense
// source) instead of "latent.extend". Page size and order are left for select().
std::vector<attention::Call> attention_calls(const ModelSpec& spec, const platform::DeviceInfo& device,
                                             DType compute, std::span<const KvFormat> group_formats,
                                             Determinism level);

// ---- one step ------------------------------------------------------------------------------------------

// A call with its pick: made by the engine, used by forward.
struct BoundCall {
  std::string name;
  attention::Attention* backend = nullptr;
  attention::PlanBuffer plan;
  bool capturable = true;  // by its row's Caps
};

// While a step is recorded: where work stands that cannot be part of a recording.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // Closes the recording so far, keeps `work` to be run between it and the next one, and goes on recording.
  // What `work` refers to stays valid as long as the recorded step.
  virtual void apart(std::function<void()> work) = 0;
};

struct GroupInputs {
  const std::int64_t* write_slot = nullptr;  // [total_q], device
  // mask and mask_width of both are the model's own: forward() sets them from the group.
  attention::StepShape decode;  // rows [0, decode_q): batch may be 0
  attention::StepShape extend;  // rows [decode_q, total_q): q_offsets count from the step's
                                // first row of this phase; kv_lens etc. are offset likewise
};

// Rows are ordered decode, then extend.
struct StepInputs {
  std::int32_t total_q = 0;                 // token rows, padding included
  std::int32_t decode_q = 0;                // of these, rows of the decode phase (one per sequence)
  const std::int32_t* tokens = nullptr;     // [total_q], device
  const std::int32_t* positions = nullptr;  // [total_q]
  std::span<const GroupInputs> groups;
  // Extend rows on the host: exact, for models that gather a prefix in chunks (never captured).
  std::span<const std::int32_t> extend_prefix;  // [extend batch] keys before this step's own
  std::span<const std::int32_t> extend_q_len;   // [extend batch]
};

struct StepContext {
  platform::Stream& stream;
  ops::Ops& ops;
  std::span<const BoundCall> calls;  // in the order of attention_calls()
  Recorder* recorder = nullptr;      // null: nothing is being recorded
};

struct ModelLimits {
  std::int32_t max_total_q = 0;  // token rows of a step
  std::int32_t max_context = 0;
  std::int32_t max_batch = 0;
  DType compute = DType::f32;  // activations.h
};

// What the operations of a step of these limits need of Ops::set_workspace.
ops::OpsLimits ops_limits(const ModelSpec& spec, const ModelLimits& limits, std::int32_t logit_rows,
                          std::int32_t threads);

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;
  // Bytes of weights of which a step reads only rows that its tokens name: the embedding, unless it is the
  // output matrix too.
  virtual std::int64_t lookup_bytes() const = 0;
  // Device bytes of all activations of a step, besides the caller's hidden and logits.
  virtual std::int64_t activation_bytes(const ModelLimits& limits) const = 0;
  virtual void set_activations(void* data, std::int64_t bytes, const ModelLimits& limits) = 0;
  // The KV views of every layer of a group, once the arena exists. views[group][layer in group].
  virtual void set_kv(std::span<const std::vector<KvView>> views) = 0;
  // Plans the step's attention calls, then embeds and walks the layers. hidden [total_q, hidden]: after the
  // final norm. Enqueues only.
  virtual void forward(const StepContext& context, const StepInputs& inputs, TensorView hidden) = 0;
  // logits [rows, vocab] of gathered hidden rows [rows, hidden], multipliers and caps applied.
  virtual void logits(const StepContext& context, TensorView hidden, TensorView logits) = 0;
};

// ---- weights -------------------------------------------------------------------------------------------

struct LoadOptions {
  bool dummy = false;  // random weights of the config's shapes, seeded
  std::uint64_t dummy_seed = 0;
  // Device memory is apart from the host's: every weight is copied there, nothing is used where the file is
  // mapped, and matrices of any stored type become `matrices`. Otherwise what `linear` multiplies stays
  // mapped.
  bool apart = false;
  DType matrices = DType::f32;  // of what is converted: f32 or bf16
  int threads = 1;              // that convert
};

// What loading will hold: mapped (file pages, read-only) and private (expanded, transposed, folded). Known
// before anything is allocated; load_model holds to it.
struct WeightPlan {
  std::int64_t mapped_bytes = 0;
  std::int64_t private_bytes = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> notes;  // "12 16-bit matrices are expanded to f32 at load: ..."
};
// Checks names, shapes and types of all tensors (missing and extra ones are named) without reading values.
Result<WeightPlan> plan_weights(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                const ops::Ops& ops, const LoadOptions& options);

// The family's model without weights, for its sizes alone (activation_bytes): the ledger is planned with it
// before anything is loaded. Never given a step.
std::unique_ptr<Model> outline_model(const ModelSpec& spec, platform::Device& device, Determinism level);

// The checkpoint outlives the model (mapped weights are used in place).
Result<std::unique_ptr<Model>> load_model(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                                          const ops::Ops& ops, platform::Device& device,
                                          const LoadOptions& options, Determinism level);

}  // namespace quire::model
