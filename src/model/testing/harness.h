// A model without an engine, for tests: one device, its operations, one attention row per call, and pages in
// a scattered order. Every step is eager and waited for. Not part of the program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/select.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "ops/ops.h"
#include "platform/platform.h"

namespace quire::model::testing {

struct HarnessOptions {
  std::string backend;  // attention row for every call; empty: the table's first that fits
  int page_size = 16;
  DType kv_type = DType::f32;
  Determinism level = Determinism::schedule_invariant;
  std::int32_t max_rows = 640;  // token rows of a step
  std::int32_t max_context = 640;
  std::int32_t max_batch = 4;
  LoadOptions load;
};

// Tokens appended to a sequence by a step.
struct Chunk {
  int sequence = 0;  // below max_batch
  std::vector<std::int32_t> tokens;
};

class Harness {
 public:
  static Result<std::unique_ptr<Harness>> open(const std::string& path, const HarnessOptions& options);

  const ModelSpec& spec() const { return spec_; }
  const WeightPlan& weight_plan() const { return weight_plan_; }
  const attention::Selection& selection() const { return selection_; }

  // One step over the chunks: those of one token form its decode phase and must come first. Returns the
  // logits of all rows, [rows, vocab].
  std::vector<float> step(const std::vector<Chunk>& chunks);
  // Forgets a sequence's tokens.
  void reset(int sequence) { lengths_[sequence] = 0; }

 private:
  struct Group {
    KvLayout layout;
    std::unique_ptr<platform::Buffer> arena;
    std::vector<std::uint32_t> table;      // [max_batch, table_stride]
    std::vector<std::int64_t> write_slot;  // of the running step
  };
  struct Phase {
    std::vector<std::int32_t> q_offsets, kv_lens;
    std::vector<std::uint32_t> sequences;
    std::int32_t max_q = 0, max_kv = 0;
  };

  Status bind_attention(const HarnessOptions& options);
  Status make_caches(const HarnessOptions& options);
  Status make_buffers(const HarnessOptions& options);
  void add_chunk(const Chunk& chunk, Phase& phase);
  attention::StepShape shape(const Phase& phase, const std::vector<std::uint32_t>& table) const;

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<platform::Device> device_;
  std::unique_ptr<ops::Ops> ops_;
  ModelSpec spec_;
  WeightPlan weight_plan_;
  attention::Selection selection_;
  std::vector<std::unique_ptr<attention::Attention>> backends_;
  std::vector<BoundCall> calls_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<platform::Buffer>> buffers_;
  std::unique_ptr<Model> model_;
  ModelLimits limits_;
  std::int64_t table_stride_ = 0;
  std::vector<std::int32_t> lengths_;  // of every sequence
  std::vector<std::int32_t> tokens_, positions_;
  float* hidden_ = nullptr;
  float* logits_ = nullptr;
  std::unique_ptr<platform::Stream> stream_;  // last: its worker stops before what it uses goes
};

}  // namespace quire::model::testing
