#include "engine/executor.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

Executor::Executor(const Parts& parts)
    : parts_(parts),
      buckets_(buckets_of(parts.buffers.limits().max_batch)),
      inputs_(static_cast<std::size_t>(parts.buffers.limits().groups)) {}

std::vector<std::int32_t> Executor::buckets_of(std::int32_t max_batch) {
  std::vector<std::int32_t> buckets;
  for (std::int32_t rows = 1; rows < max_batch; rows *= 2) buckets.push_back(rows);
  buckets.push_back(max_batch);
  return buckets;
}

std::int32_t Executor::bucket(std::int32_t rows) const {
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), rows);
  QUIRE_CHECK(at != buckets_.end(), "rows={} largest bucket={}", rows, buckets_.back());
  return *at;
}

void Executor::record() {
  for (const std::int32_t rows : buckets_) {
    parts_.stream.begin_capture();
    enqueue(StepLaunch{.decode_rows = rows, .total_q = rows, .logit_rows = rows});
    graphs_.push_back(parts_.stream.end_capture());
  }
}

bool Executor::forward(const StepLaunch& launch) {
  if (launch.extend_rows > 0 || graphs_.empty()) return enqueue(launch), false;
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), launch.decode_rows);
  QUIRE_CHECK(at != buckets_.end() && *at == launch.decode_rows && launch.logit_rows == launch.decode_rows,
              "decode rows={} logit rows={} is no bucket", launch.decode_rows, launch.logit_rows);
  parts_.stream.launch(*graphs_[static_cast<std::size_t>(at - buckets_.begin())]);
  return true;
}

void Executor::begin(const StepLaunch& launch) {
  StepBuffers& buffers = parts_.buffers;
  ops::BeginStep args;
  args.state = buffers.state;
  args.rows = buffers.upload.rows;
  args.literals = buffers.upload.literals;
  args.deltas = buffers.upload.deltas;
  args.delta_count = buffers.upload.delta_count;
  args.batch = launch.decode_rows + launch.extend_rows;
  args.total_q = launch.total_q;
  args.padded_kv_len = parts_.padded_kv_len;
  args.group_count = buffers.limits().groups;
  for (std::int32_t g = 0; g < args.group_count; ++g) args.groups[g] = buffers.groups[g];
  args.tokens = buffers.tokens;
  args.positions = buffers.positions;
  args.q_offsets = buffers.q_offsets;
  args.kv_lens = buffers.kv_lens;
  parts_.ops.begin_step(args, parts_.stream);
}

void Executor::enqueue(const StepLaunch& launch) {
  StepBuffers& buffers = parts_.buffers;
  const StepLimits& limits = buffers.limits();
  begin(launch);
  for (std::size_t g = 0; g < inputs_.size(); ++g) {
    const ops::StepGroup& group = buffers.groups[g];
    attention::StepShape shape;
    shape.max_kv = limits.max_context;
    shape.table_stride = group.table_stride;
    inputs_[g].write_slot = group.write_slot;
    inputs_[g].decode = shape;
    inputs_[g].decode.batch = launch.decode_rows;
    inputs_[g].decode.total_q = launch.decode_rows;
    inputs_[g].decode.max_q = 1;
    inputs_[g].decode.q_offsets = buffers.q_offsets;
    inputs_[g].decode.kv_lens = buffers.kv_lens;
    inputs_[g].decode.block_table = group.row_table;
    inputs_[g].extend = shape;
    inputs_[g].extend.batch = launch.extend_rows;
    inputs_[g].extend.total_q = launch.total_q - launch.decode_rows;
    inputs_[g].extend.max_q = launch.longest_extend;
    inputs_[g].extend.q_offsets = buffers.upload.extend_offsets;
    inputs_[g].extend.kv_lens = buffers.kv_lens + launch.decode_rows;
    inputs_[g].extend.block_table = group.row_table + launch.decode_rows * group.table_stride;
  }
  model::StepInputs step;
  step.total_q = launch.total_q;
  step.decode_q = launch.decode_rows;
  step.tokens = buffers.tokens;
  step.positions = buffers.positions;
  step.groups = inputs_;
  step.extend_prefix = launch.extend_prefix;
  step.extend_q_len = launch.extend_q_len;
  const TensorView hidden = buffers.hidden.rows_slice(0, launch.total_q);
  parts_.model.forward(context(), step, hidden);
  if (launch.logit_rows == 0) return;
  const TensorView input = buffers.logit_input.rows_slice(0, launch.logit_rows);
  parts_.ops.gather_rows({.x = hidden, .index = buffers.upload.logit_hidden, .y = input}, parts_.stream);
  parts_.model.logits(context(), input, buffers.logits.rows_slice(0, launch.logit_rows));
}

void Executor::logits_of(std::int32_t begin_row, std::int32_t rows) {
  StepBuffers& buffers = parts_.buffers;
  parts_.model.logits(context(), buffers.hidden.rows_slice(begin_row, rows),
                      buffers.logits.rows_slice(0, rows));
}

}  // namespace quire::engine
