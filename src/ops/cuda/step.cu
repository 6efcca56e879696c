// The step's inputs: begin_step and end_step.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kMostSlots = 1 << 16;

// The table deltas of the slots that `mine_is(slot)` names, in their order: of two with one place the later
// one stays. Threads take a stretch of the list at a time, and a delta that a later one of the stretch
// overrules is not written.
template <class F>
__device__ void apply_deltas(const BeginStep& s, int4* keys, F&& is_mine) {
  const std::int32_t count = *s.delta_count;
  for (std::int32_t begin = 0; begin < count; begin += kThreads) {
    const std::int32_t here = min(kThreads, count - begin);
    const int me = static_cast<int>(threadIdx.x);
    TableDelta mine;
    if (me < here) {
      mine = s.deltas[begin + me];
      if (mine.group < 0 || mine.group >= s.group_count || mine.index < 0 ||
          mine.index >= s.groups[mine.group].table_stride)
        __trap();  // a bug of the host's table
      keys[me] = make_int4(mine.group, mine.slot, mine.index, 0);
    }
    __syncthreads();
    if (me < here && is_mine(mine.slot)) {
      bool last = true;
      for (int later = me + 1; later < here && last; ++later) {
        const int4 key = keys[later];
        last = key.x != mine.group || key.y != mine.slot || key.z != mine.index;
      }
      const StepGroup& group = s.groups[mine.group];
      if (last) group.slot_table[mine.slot * group.table_stride + mine.index] = mine.page;
    }
    __syncthreads();
  }
}

__device__ void write_token(const BeginStep& s, const StepRow& row, std::int32_t length, std::int32_t t) {
  const std::int64_t at = row.q_begin + t;
  const std::int32_t position = length + t;
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

__device__ void pad_token(const BeginStep& s, std::int64_t at) {
  s.tokens[at] = 0;
  s.positions[at] = 0;
  for (std::int32_t g = 0; g < s.group_count; ++g) s.groups[g].write_slot[at] = 0;
}

// Block r is row r: it applies its slot's deltas before it reads that slot's entries, so no block waits for
// another. The last block applies the deltas of slots without a row and pads the tokens that no row has.
__global__ void __launch_bounds__(kThreads) begin_step_kernel(const __grid_constant__ BeginStep s) {
  __shared__ int4 keys[kThreads];
  __shared__ std::int32_t ends[kThreads / 32];
  __shared__ std::uint32_t has_row[kMostSlots / 32];
  begin_kernel();
  const auto r = static_cast<std::int32_t>(blockIdx.x);
  const auto me = static_cast<std::int32_t>(threadIdx.x);
  if (r == s.batch) {
    for (int i = me; i < kMostSlots / 32; i += kThreads) has_row[i] = 0;
    __syncthreads();
    std::int32_t end = 0;
    for (std::int32_t i = me; i < s.batch; i += kThreads) {
      const StepRow row = s.rows[i];
      if (row.slot < 0 || row.slot >= kMostSlots) __trap();  // a bug of the host's plan
      atomicOr(&has_row[row.slot / 32], 1u << (row.slot % 32));
      end = max(end, row.q_begin + row.q_len);
    }
    __syncthreads();
    apply_deltas(s, keys, [&](std::int32_t slot) {
      return slot != 0 && slot < kMostSlots && !(has_row[slot / 32] >> (slot % 32) & 1u);
    });
    end = __reduce_max_sync(0xffffffffu, end);
    if (me % 32 == 0) ends[me / 32] = end;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) end = max(end, ends[w]);
    if (me == 0) s.q_offsets[s.batch] = end;
    for (std::int32_t at = end + me; at < s.total_q; at += kThreads) pad_token(s, at);
    return;
  }
  const StepRow row = s.rows[r];
  const bool padded = row.slot == 0;
  const std::int32_t length = padded ? 0 : s.state.length[row.slot];
  const std::int32_t kv_len = padded ? s.padded_kv_len : length + row.q_len;
  if (!padded) apply_deltas(s, keys, [&](std::int32_t slot) { return slot == row.slot; });
  if (me == 0) {
    s.q_offsets[r] = row.q_begin;
    s.kv_lens[r] = kv_len;
  }
  for (std::int32_t t = me; t < row.q_len; t += kThreads) {
    padded ? pad_token(s, row.q_begin + t) : write_token(s, row, length, t);
  }
  for (std::int32_t g = 0; g < s.group_count; ++g) {
    const StepGroup& group = s.groups[g];
    const std::int64_t pages =
        min(static_cast<std::int64_t>((kv_len + group.page_size - 1) / group.page_size), group.table_stride);
    const std::uint32_t* from = group.slot_table + row.slot * group.table_stride;
    std::uint32_t* to = group.row_table + r * group.table_stride;
#pragma unroll 4
    for (std::int64_t i = me; i < pages; i += kThreads) to[i] = from[i];
  }
}

__global__ void __launch_bounds__(kThreads) end_step_kernel(EndStep s) {
  begin_kernel();
  const auto r = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (r >= s.batch) return;
  const StepRow row = s.rows[r];
  if (row.slot != 0) s.state.length[row.slot] += row.q_len;
}

}  // namespace

void CudaOps::begin_step(const BeginStep& args, platform::Stream& stream) {
  QUIRE_CHECK(args.group_count >= 0 && args.group_count <= kMaxGroups && args.batch >= 0 && args.total_q >= 0,
              "groups={} batch={} total_q={}", args.group_count, args.batch, args.total_q);
  launch(stream, begin_step_kernel, dim3(static_cast<unsigned>(args.batch) + 1), dim3(kThreads), 0, 1, args);
}

void CudaOps::end_step(const EndStep& args, platform::Stream& stream) {
  launch(stream, end_step_kernel, dim3(blocks_for(args.batch, kThreads)), dim3(kThreads), 0, 1, args);
}

}  // namespace quire::ops::cuda
