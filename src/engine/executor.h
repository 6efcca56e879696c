// Executor: puts one step on the stream. A step without extend rows is a decode step: its row count is
// rounded up to a bucket, and the work from begin_step to the logits is recorded once per bucket and
// replayed (recording.h). Steps with extend rows, buckets without a recording, and every step when graphs are
// off call the same function eagerly: at the same bucket the bits are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/recording.h"
#include "engine/step_buffers.h"
#include "model/model.h"
#include "ops/ops.h"
#include "platform/platform.h"

namespace quire::engine {

// What the host knows of a step when it launches it; the rest is on the device.
struct StepLaunch {
  std::int32_t decode_rows = 0;     // sequences with one token; a decode step's are padded to a bucket
  std::int32_t extend_rows = 0;     // sequences with more
  std::int32_t total_q = 0;         // token rows, padding included
  std::int32_t longest_extend = 0;  // tokens of the longest extend row
  std::int32_t logit_rows = 0;      // rows of upload.logit_hidden, padding included
  bool eager = false;               // no replay: somebody watches the attention calls of this step
  std::span<const std::int32_t> extend_prefix;  // [extend_rows] keys before this step's own
  std::span<const std::int32_t> extend_q_len;   // [extend_rows]
};

class Executor {
 public:
  // All references outlive the executor.
  struct Parts {
    StepBuffers& buffers;
    model::Model& model;
    ops::Ops& ops;
    platform::Stream& stream;
    std::span<const model::BoundCall> calls;
    std::int32_t padded_kv_len = 0;
    bool host_memory = true;  // DeviceInfo
  };
  explicit Executor(const Parts& parts);

  // 1, 2, 4, ... and max_batch itself, ascending; on a device of its own memory finer from 8 on, where a
  // padded row costs time and a recording costs little.
  static std::vector<std::int32_t> buckets_of(std::int32_t max_batch, bool host_memory);
  std::int32_t bucket(std::int32_t rows) const;
  // Records the buckets, the smallest first, until `seconds` have passed; returns how many there are.
  // Afterwards forward() replays decode steps. A device of its own memory runs every bucket once before, with
  // padding rows only: what libraries and kernels set up when first used is no part of a recording.
  std::size_t record(double seconds);
  std::size_t buckets() const { return buckets_.size(); }
  // One step of any shape, prefill and mixed ones too, as recorded work: its replay stands for forward() of a
  // launch that differs in what the device holds only (tokens, lengths, tables). What a row cannot record
  // stands apart between the pieces. The shape has run before: what libraries set up when first used is no
  // part of it. Not for models that gather a prefix by its length on the host (StepInputs::extend_prefix).
  std::unique_ptr<Recording> record_step(const StepLaunch& launch);

  // Enqueues a step up to its logits. True when it was a replay.
  bool forward(const StepLaunch& launch);
  // Only what moves tables and lengths (with end_step): for measuring decode at a length without its prefill.
  void advance_only(const StepLaunch& launch) { begin(launch); }
  // logits [rows, vocab] of hidden rows [begin, begin + rows): for scoring.
  void logits_of(std::int32_t begin, std::int32_t rows);

 private:
  void enqueue(const StepLaunch& launch, model::Recorder* recorder);
  void begin(const StepLaunch& launch);
  void upload_padding();
  model::StepContext context(model::Recorder* recorder) {
    return {parts_.stream, parts_.ops, parts_.calls, recorder};
  }

  Parts parts_;
  std::vector<std::int32_t> buckets_;
  std::vector<std::unique_ptr<Recording>> recordings_;  // of the first buckets
  std::vector<model::GroupInputs> inputs_;              // per group, reused
};

}  // namespace quire::engine
