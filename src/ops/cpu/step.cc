// The step's inputs (begin_step, end_step) and what only moves rows (embed, gather_rows).
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "platform/cpu/stream.h"

namespace quire::ops::cpu {

using platform::cpu::Team;

namespace {

void apply_deltas(const BeginStep& s) {
  for (std::int32_t i = 0; i < *s.delta_count; ++i) {
    const TableDelta& delta = s.deltas[i];
    QUIRE_CHECK(delta.group >= 0 && delta.group < s.group_count && delta.index >= 0 &&
                    delta.index < s.groups[delta.group].table_stride,
                "table delta {}: group {} index {}", i, delta.group, delta.index);
    const StepGroup& group = s.groups[delta.group];
    group.slot_table[delta.slot * group.table_stride + delta.index] = delta.page;
  }
}

void write_token(const BeginStep& s, const StepRow& row, std::int32_t t) {
  const std::int64_t at = row.q_begin + t;
  const std::int32_t position = s.state.length[row.slot] + t;
  const std::int32_t token = row.literal >= 0 ? s.literals[row.literal + t] : s.state.last_token[row.slot];
  s.tokens[at] = token;
  s.positions[at] = position;
  if (position < s.state.history_stride)
    s.state.history[row.slot * s.state.history_stride + position] = token;
  for (std::int32_t g = 0; g < s.group_count; ++g) {
    const StepGroup& group = s.groups[g];
    const std::int64_t page = group.slot_table[row.slot * group.table_stride + position / group.page_size];
    group.write_slot[at] = page * group.page_size + position % group.page_size;
  }
}

void pad_token(const BeginStep& s, std::int32_t at) {
  s.tokens[at] = 0;
  s.positions[at] = 0;
  for (std::int32_t g = 0; g < s.group_count; ++g) s.groups[g].write_slot[at] = 0;
}

// The table entries that the row's keys can reach, and no more: the rest of a row is never read.
void gather_table(const StepGroup& group, std::int32_t r, std::int32_t slot, std::int32_t kv_len) {
  const std::int64_t pages = (kv_len + group.page_size - 1) / group.page_size;
  std::memcpy(group.row_table + r * group.table_stride, group.slot_table + slot * group.table_stride,
              static_cast<std::size_t>(std::min(pages, group.table_stride)) * sizeof(std::uint32_t));
}

void run_begin_step(const BeginStep& s) {
  apply_deltas(s);
  std::int32_t end = 0;
  for (std::int32_t r = 0; r < s.batch; ++r) {
    const StepRow& row = s.rows[r];
    const bool padded = row.slot == 0;
    s.q_offsets[r] = row.q_begin;
    s.kv_lens[r] = padded ? s.padded_kv_len : s.state.length[row.slot] + row.q_len;
    for (std::int32_t t = 0; t < row.q_len; ++t) {
      padded ? pad_token(s, row.q_begin + t) : write_token(s, row, t);
    }
    for (std::int32_t g = 0; g < s.group_count; ++g) gather_table(s.groups[g], r, row.slot, s.kv_lens[r]);
    end = std::max(end, row.q_begin + row.q_len);
  }
  s.q_offsets[s.batch] = end;
  for (std::int32_t at = end; at < s.total_q; ++at) pad_token(s, at);
}

}  // namespace

void CpuOps::begin_step(const BeginStep& args, platform::Stream& stream) {
  QUIRE_CHECK(args.group_count >= 0 && args.group_count <= kMaxGroups && args.batch >= 0 && args.total_q >= 0,
              "groups={} batch={} total_q={}", args.group_count, args.batch, args.total_q);
  platform::cpu::as_cpu(stream).enqueue([args](Team&) { run_begin_step(args); });
}

void CpuOps::end_step(const EndStep& args, platform::Stream& stream) {
  platform::cpu::as_cpu(stream).enqueue([args](Team&) {
    for (std::int32_t r = 0; r < args.batch; ++r) {
      const StepRow& row = args.rows[r];
      if (row.slot != 0) args.state.length[row.slot] += row.q_len;
    }
  });
}

void CpuOps::embed(const Embed& args, platform::Stream& stream) {
  const Product* product = products_.find(args.table.format);
  QUIRE_CHECK(product != nullptr && is_matrix(args.y) && args.y.cols() == args.table.cols,
              "embed of {} columns from a table of format {} with {}", args.y.cols(),
              weight_format_info(args.table.format).name, args.table.cols);
  const Dequantise dequantise = product->dequantise;
  platform::cpu::as_cpu(stream).enqueue([args, dequantise](Team& team) {
    for_rows(team, args.y.rows(), args.y.cols(), [&](std::int64_t r, int) {
      const std::int64_t token = args.tokens[r];
      QUIRE_CHECK(token >= 0 && token < args.table.rows, "token {} of {}", token, args.table.rows);
      float* y = row_of(args.y, r);
      dequantise(static_cast<const char*>(args.table.data) + token * args.table.row_bytes, y, args.y.cols());
      if (args.table.row_scale) {
        for (std::int64_t i = 0; i < args.y.cols(); ++i) y[i] *= args.table.row_scale[token];
      }
      if (args.scale != 1.0f) {
        for (std::int64_t i = 0; i < args.y.cols(); ++i) y[i] *= args.scale;
      }
    });
  });
}

void CpuOps::gather_rows(const GatherRows& args, platform::Stream& stream) {
  QUIRE_CHECK(is_matrix(args.x) && is_matrix(args.y) && args.x.cols() == args.y.cols(), "x cols {} y cols {}",
              args.x.cols(), args.y.cols());
  platform::cpu::as_cpu(stream).enqueue([args](Team& team) {
    for_rows(team, args.y.rows(), args.y.cols(), [&](std::int64_t r, int) {
      const std::int64_t from = args.index[r];
      QUIRE_CHECK(from >= 0 && from < args.x.rows(), "row {} of {}", from, args.x.rows());
      std::memcpy(row_of(args.y, r), row_of(args.x, from),
                  static_cast<std::size_t>(args.y.cols()) * sizeof(float));
    });
  });
}

}  // namespace quire::ops::cpu
