#include "engine/executor.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/clock.h"

namespace quire::engine {

Executor::Executor(const Parts& parts)
    : parts_(parts),
      buckets_(buckets_of(parts.buffers.limits().max_batch, parts.host_memory)),
      inputs_(static_cast<std::size_t>(parts.buffers.limits().groups)) {}

std::vector<std::int32_t> Executor::buckets_of(std::int32_t max_batch, bool host_memory) {
  std::vector<std::int32_t> buckets;
  std::int32_t rows = 1;
  while (rows < max_batch) {
    buckets.push_back(rows);
    // The CPU computes what a padding row asks for; a GPU's tiles do so anyway.
    if (host_memory) {
      rows += std::max(1, static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(rows))) / 4);
    } else {
      rows += rows < 8 ? rows : std::max(8, rows / 4 / 8 * 8);
    }
  }
  buckets.push_back(max_batch);
  return buckets;
}

std::int32_t Executor::bucket(std::int32_t rows) const {
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), rows);
  QUIRE_CHECK(at != buckets_.end(), "rows={} largest bucket={}", rows, buckets_.back());
  return *at;
}

// The step's inputs as if no sequence lived: every row is padding.
void Executor::upload_padding() {
  Upload& host = parts_.buffers.host_upload(0);
  *host.delta_count = 0;
  pad_rows(host, 0, buckets_.back());
  const auto* begin = reinterpret_cast<const char*>(host.delta_count);
  parts_.stream.copy(parts_.buffers.upload.delta_count, begin,
                     reinterpret_cast<const char*>(host.logit_hidden + buckets_.back()) - begin);
}

std::size_t Executor::record(double seconds) {
  const Clock::time_point begin = Clock::now();
  if (!parts_.host_memory) upload_padding();
  for (const std::int32_t rows : buckets_) {
    if (seconds_since(begin) > seconds) break;
    const StepLaunch launch{.decode_rows = rows, .total_q = rows, .logit_rows = rows};
    if (!parts_.host_memory) enqueue(launch, nullptr);
    recordings_.push_back(record_step(launch));
  }
  return recordings_.size();
}

std::unique_ptr<Recording> Executor::record_step(const StepLaunch& launch) {
  auto recording = std::make_unique<Recording>(parts_.stream);
  recording->begin();
  enqueue(launch, recording.get());
  recording->end();
  return recording;
}

bool Executor::forward(const StepLaunch& launch) {
  if (launch.extend_rows > 0 || launch.eager || recordings_.empty()) return enqueue(launch, nullptr), false;
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), launch.decode_rows);
  QUIRE_CHECK(at != buckets_.end() && *at == launch.decode_rows && launch.logit_rows == launch.decode_rows,
              "decode rows={} logit rows={} is no bucket", launch.decode_rows, launch.logit_rows);
  const auto index = static_cast<std::size_t>(at - buckets_.begin());
  if (index >= recordings_.size()) return enqueue(launch, nullptr), false;
  recordings_[index]->replay();
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

void Executor::enqueue(const StepLaunch& launch, model::Recorder* recorder) {
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
  parts_.model.forward(context(recorder), step, hidden);
  if (launch.logit_rows == 0) return;
  const TensorView input = buffers.logit_input.rows_slice(0, launch.logit_rows);
  parts_.ops.gather_rows({.x = hidden, .index = buffers.upload.logit_hidden, .y = input}, parts_.stream);
  parts_.model.logits(context(recorder), input, buffers.logits.rows_slice(0, launch.logit_rows));
}

void Executor::logits_of(std::int32_t begin_row, std::int32_t rows) {
  StepBuffers& buffers = parts_.buffers;
  parts_.model.logits(context(nullptr), buffers.hidden.rows_slice(begin_row, rows),
                      buffers.logits.rows_slice(0, rows));
}

}  // namespace quire::engine
