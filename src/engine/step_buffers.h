// StepBuffers: everything a step reads and writes besides weights, KV and activations, at fixed addresses and
// sized once by the engine's limits. Two pinned copies of what is uploaded and of what comes back: while the
// device runs step n out of one, the host fills the other for step n + 1.
// Ownership: owns its buffers. Thread rule: the engine's thread writes the pinned side, the stream the rest.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "engine/ledger.h"
#include "ops/ops.h"
#include "platform/platform.h"

namespace quire::engine {

struct StepLimits {
  std::int32_t max_batch = 0;    // sequences of one step
  std::int32_t max_total_q = 0;  // token rows of one step
  std::int32_t slots = 0;        // rows of the sequence state, padding slot 0 included
  std::int32_t max_deltas = 0;   // table entries that change in one step
  std::int32_t max_context = 0;
  std::int32_t page_size = 1;
  std::int32_t groups = 1;
  std::int32_t hidden = 0;
  std::int32_t vocab = 0;
  DType compute = DType::f32;  // of hidden

  std::int32_t max_logit_rows() const;
  std::int64_t table_stride() const { return (max_context + page_size - 1) / page_size; }
  std::int64_t history_stride() const { return max_context + 1; }
};

// What goes up with every step, in one copy. The order of the fields is the order in memory; a step copies up
// to the last field it uses.
struct Upload {
  std::int32_t* delta_count = nullptr;     // [1]
  ops::StepRow* rows = nullptr;            // [max_batch]
  std::int32_t* logit_row = nullptr;       // [max_logit_rows] the StepRow to sample for; -1: none
  std::int32_t* logit_hidden = nullptr;    // [max_logit_rows] the row of `hidden` its logits come from
  std::int32_t* extend_offsets = nullptr;  // [max_batch + 1] q offsets of the extend rows, from 0
  ops::TableDelta* deltas = nullptr;       // [max_deltas]
  std::int32_t* literals = nullptr;        // [max_total_q]
  std::int32_t* score_target = nullptr;    // [max_total_q]
  // By a copy of their own, in steps that guide somebody; as in ops::Sample.
  std::int32_t* mask_row = nullptr;  // [max_logit_rows]
  std::uint32_t* masks = nullptr;    // [max_batch, mask_words(vocab)]
};

// Makes rows [from, to) of a decode step nobody's: they read the padding slot, and nobody samples their
// logits.
void pad_rows(Upload& upload, std::int32_t from, std::int32_t to);

// What comes back with every step.
struct Results {
  std::int32_t* token = nullptr;         // [max_logit_rows]
  float* score_logprob = nullptr;        // [max_total_q]
  std::int32_t* score_argmax = nullptr;  // [max_total_q]
  std::int32_t* score_top_id = nullptr;  // [max_total_q * kMaxScoreTop], dense per scored block
  float* score_top_logprob = nullptr;
  // Of the sampled tokens, in steps where somebody asks for them.
  float* token_logprob = nullptr;        // [max_logit_rows]
  std::int32_t* token_top_id = nullptr;  // [max_logit_rows * kMaxLogprobs], dense for the most that is asked
  float* token_top_logprob = nullptr;
};

// What a sequence's slot starts with; staged by the host, uploaded on admission.
struct SlotStart {
  ops::SamplingParams params;
  std::int32_t length = 0;
  std::int32_t prompt_length = 0;
  ops::LogitBias bias[ops::kMaxLogitBias];
};

class StepBuffers {
 public:
  // The ledger's lines: "step buffers", "logits", "sequence state", "block tables". `host_memory`: device and
  // host share it, so the pinned side is a line like the others.
  static void plan(const StepLimits& limits, bool host_memory, Ledger& ledger);
  static Result<std::unique_ptr<StepBuffers>> make(const StepLimits& limits, platform::Device& device);

  const StepLimits& limits() const { return limits_; }
  Upload& host_upload(std::int64_t step) { return host_upload_[step & 1]; }
  Results& host_results(std::int64_t step) { return host_results_[step & 1]; }
  // Staged for the step that opens the slot.
  SlotStart& slot_start(std::int64_t step, std::int32_t slot) { return slot_start_[step & 1][slot]; }

  Upload upload;    // device
  Results results;  // device
  ops::SequenceState state;
  ops::SamplingParams* params = nullptr;  // [slots]
  ops::LogitBias* bias = nullptr;         // [slots, kMaxLogitBias]
  std::int32_t* tokens = nullptr;         // [max_total_q]
  std::int32_t* positions = nullptr;      // [max_total_q]
  std::int32_t* q_offsets = nullptr;      // [max_batch + 1]
  std::int32_t* kv_lens = nullptr;        // [max_batch]
  std::array<ops::StepGroup, ops::kMaxGroups> groups{};
  TensorView hidden;       // [max_total_q, hidden], compute type
  TensorView logit_input;  // [max_logit_rows, hidden]
  TensorView logits;       // [max_logit_rows, vocab], float32

  // Zeroes what padding slot 0 reads; `everything`: all of it, so that the process holds it from now on.
  // Once, before the first step.
  void clear(platform::Stream& stream, bool everything);

 private:
  explicit StepBuffers(const StepLimits& limits) : limits_(limits) {}
  std::int64_t carve_pinned(void* base);
  std::int64_t carve_step(void* base);
  std::int64_t carve_state(void* base);
  std::int64_t carve_tables(void* base);
  std::int64_t carve_logits(void* base);

  StepLimits limits_;
  std::array<Upload, 2> host_upload_;
  std::array<Results, 2> host_results_;
  std::array<SlotStart*, 2> slot_start_{};  // [slots], pinned
  std::array<std::unique_ptr<platform::Buffer>, 5> memory_;
};

}  // namespace quire::engine
