#include "model/mla_extend.h"

#include <algorithm>

#include "attention/merge.h"
#include "base/check.h"
#include "model/attend.h"
#include "model/blocks.h"

namespace quire::model {
namespace {

// Calls of a latent model in dense form: "latent.decode", "mla.own", "mla.prefix".
constexpr std::size_t kOwnCall = 1;
constexpr std::size_t kPrefixCall = 2;

void copy(const Step& step, TensorView from, TensorView to) {
  step.ops().copy(ops::Copy{from, to}, step.stream());
}

// One row seen by every head.
TensorView repeated(TensorView rows, std::int64_t heads) {
  return TensorView{
      rows.data, rows.dtype, 3, {rows.shape[0], heads, rows.shape[1], 1}, {rows.stride[0], 0, 1, 0}};
}

KvView dense_view(TensorView keys, TensorView values) {
  KvView view;
  view.format.k_type = keys.dtype;
  view.format.v_type = values.dtype;
  const auto element = static_cast<std::int64_t>(dtype_bytes(keys.dtype));
  view.k = keys.data;
  view.v = values.data;
  view.k_stride = {0, keys.stride[1] * element, keys.stride[0] * element, element};
  view.v_stride = {0, values.stride[1] * element, values.stride[0] * element, element};
  return view;
}

}  // namespace

bool uses_dense_extend(const ModelSpec& spec, Determinism level) {
  return spec.latent.has_value() && level < Determinism::schedule_invariant;
}

MlaExtend::MlaExtend(const ModelSpec& spec, platform::Device& device) : spec_(spec) {
  for (Staging& staging : staging_) staging.uploaded = device.make_event();
}

// Sequences in full, and one more entry for each border between passes.
std::int32_t MlaExtend::max_entries(const ModelLimits& limits) {
  const std::int64_t keys = std::int64_t{limits.max_batch} * limits.max_context;
  return static_cast<std::int32_t>(limits.max_batch + keys / kPrefixChunkTokens + 1);
}

MlaExtend::Arrays MlaExtend::plan_arrays(Region& region, const ModelLimits& limits) {
  const std::int32_t entries = max_entries(limits);
  Arrays a;
  a.own_offset = region.take_array<std::int64_t>(limits.max_batch);
  a.entry_offset = region.take_array<std::int64_t>(entries);
  a.own_len = region.take_array<std::int32_t>(limits.max_batch);
  a.key_begin = region.take_array<std::int32_t>(entries);
  a.key_end = region.take_array<std::int32_t>(entries);
  a.key_count = region.take_array<std::int32_t>(entries);
  return a;
}

MlaExtend::Work MlaExtend::plan_work(Region& region, const ModelLimits& limits) const {
  const std::int64_t heads = spec_.q_heads;
  const LatentSpec& latent = *spec_.latent;
  const std::int64_t rows = std::max<std::int64_t>(limits.max_total_q, kPrefixChunkTokens);
  Work w;
  w.arrays = plan_arrays(region, limits);
  w.prefix = region.matrix(DType::f32, kPrefixChunkTokens, latent.kv_lora_rank + latent.rope_dim);
  w.expanded = region.matrix(DType::f32, rows, heads * (latent.nope_dim + latent.v_dim));
  w.keys = region.matrix(DType::f32, rows, heads * (latent.nope_dim + latent.rope_dim));
  w.part_out = region.matrix(DType::f32, limits.max_total_q, heads * latent.v_dim);
  w.lse = region.take_array<float>(limits.max_total_q * heads);
  w.part_lse = region.take_array<float>(limits.max_total_q * heads);
  return w;
}

std::int64_t MlaExtend::bytes(const ModelLimits& limits) const {
  Region region(nullptr);
  plan_work(region, limits);
  return region.used();
}

void MlaExtend::set_activations(void* data, const ModelLimits& limits) {
  Region region(data);
  work_ = plan_work(region, limits);
  Region arrays(nullptr);
  plan_arrays(arrays, limits);
  array_bytes_ = arrays.used();
  for (Staging& staging : staging_) staging.data.resize(array_bytes_);
  passes_.reserve(max_entries(limits));
}

// Packs the prefixes, sequence by sequence, into passes of at most kPrefixChunkTokens keys.
void MlaExtend::fill_passes(const StepInputs& inputs, const Arrays& arrays) {
  passes_.clear();
  std::int32_t entry = 0;
  Pass pass;
  const auto close = [&] {
    if (pass.tokens > 0) passes_.push_back(pass);
    pass = Pass{};
  };
  for (std::size_t s = 0; s < inputs.extend_prefix.size(); ++s) {
    const std::int32_t prefix = inputs.extend_prefix[s];
    std::int32_t begin = 0;
    do {  // a sequence without a prefix is one empty stretch between the others
      const std::int32_t count = std::min(prefix - begin, kPrefixChunkTokens - pass.tokens);
      if (pass.sequences == 0) {
        pass.first_sequence = static_cast<std::int32_t>(s);
        pass.first_entry = entry;
      }
      arrays.entry_offset[entry] = pass.tokens;
      arrays.key_begin[entry] = begin;
      arrays.key_end[entry] = begin + count;
      arrays.key_count[entry] = count;
      ++entry;
      ++pass.sequences;
      pass.tokens += count;
      pass.max_keys = std::max(pass.max_keys, count);
      begin += count;
      if (pass.tokens == kPrefixChunkTokens) close();
    } while (begin < prefix);
  }
  close();
}

void MlaExtend::begin_step(const StepContext& context, const StepInputs& inputs) {
  passes_.clear();
  if (inputs.decode_q == inputs.total_q) return;
  const attention::StepShape& extend = inputs.groups[0].extend;
  QUIRE_CHECK(inputs.extend_q_len.size() == static_cast<std::size_t>(extend.batch) &&
                  inputs.extend_prefix.size() == inputs.extend_q_len.size(),
              "lengths={} prefixes={} batch={}", inputs.extend_q_len.size(), inputs.extend_prefix.size(),
              extend.batch);
  Staging& staging = staging_[next_staging_++ % kStaging];
  staging.uploaded->wait();
  // The same layout at another base: the device's arrays start at work_.arrays.own_offset.
  const std::ptrdiff_t shift = staging.data.data() - reinterpret_cast<std::byte*>(work_.arrays.own_offset);
  const auto staged = [&](auto* device) {
    return reinterpret_cast<decltype(device)>(reinterpret_cast<std::byte*>(device) + shift);
  };
  Arrays host{staged(work_.arrays.own_offset), staged(work_.arrays.entry_offset),
              staged(work_.arrays.own_len),    staged(work_.arrays.key_begin),
              staged(work_.arrays.key_end),    staged(work_.arrays.key_count)};
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < inputs.extend_q_len.size(); ++s) {
    host.own_offset[s] = offset;
    host.own_len[s] = inputs.extend_q_len[s];
    offset += inputs.extend_q_len[s];
  }
  fill_passes(inputs, host);
  context.stream.copy(work_.arrays.own_offset, staging.data.data(), array_bytes_);
  context.stream.record(*staging.uploaded);
}

// Keys [nope of kv_b | the shared rope part] and values of kv_b, for every head.
KvView MlaExtend::expand(const Step& step, TensorView latent, const WeightView& kv_b) {
  const LatentSpec& sizes = *spec_.latent;
  const std::int64_t heads = spec_.q_heads;
  const TensorView expanded = work_.expanded.rows_slice(0, latent.rows());
  const TensorView keys = work_.keys.rows_slice(0, latent.rows()).split_heads(heads);
  linear(step, latent.cols_slice(0, sizes.kv_lora_rank), kv_b, nullptr, expanded);
  const TensorView per_head = expanded.split_heads(heads);
  copy(step, head_dims(per_head, 0, sizes.nope_dim), head_dims(keys, 0, sizes.nope_dim));
  copy(step, repeated(latent.cols_slice(sizes.kv_lora_rank, sizes.rope_dim), heads),
       head_dims(keys, sizes.nope_dim, sizes.rope_dim));
  return dense_view(keys, head_dims(per_head, sizes.nope_dim, sizes.v_dim));
}

void MlaExtend::run_own(const Step& step, const MlaExtendArgs& args) {
  attention::StepShape shape = step.inputs.groups[0].extend;
  shape.max_kv = shape.max_q;
  shape.kv_lens = work_.arrays.own_len;
  shape.kv_offsets = work_.arrays.own_offset;
  shape.block_table = nullptr;
  shape.mask = attention::MaskKind::causal;
  const BoundCall& call = step.context.calls[kOwnCall];
  attention::Args run =
      attention_args(spec_, args.q, args.out, expand(step, args.latent, *args.kv_b), nullptr);
  run.lse = work_.lse;
  call.backend->plan(shape, call.plan, step.stream());
  call.backend->run(shape, run, call.plan, step.stream());
}

void MlaExtend::run_pass(const Step& step, const MlaExtendArgs& args, const Pass& pass) {
  const attention::StepShape& extend = step.inputs.groups[0].extend;
  const Arrays& arrays = work_.arrays;
  const TensorView prefix = work_.prefix.rows_slice(0, pass.tokens);
  ops::KvGather gather;
  gather.kv = args.kv;
  gather.dim = static_cast<std::int32_t>(prefix.cols());
  gather.block_table = extend.block_table + pass.first_sequence * extend.table_stride;
  gather.table_stride = extend.table_stride;
  gather.batch = pass.sequences;
  gather.key_begin = arrays.key_begin + pass.first_entry;
  gather.key_end = arrays.key_end + pass.first_entry;
  gather.out_offsets = arrays.entry_offset + pass.first_entry;
  gather.out = static_cast<float*>(prefix.data);
  step.ops().kv_gather(gather, step.stream());

  attention::StepShape shape = extend;
  shape.batch = pass.sequences;
  shape.max_kv = pass.max_keys;
  shape.q_offsets = extend.q_offsets + pass.first_sequence;
  shape.kv_lens = arrays.key_count + pass.first_entry;
  shape.kv_offsets = arrays.entry_offset + pass.first_entry;
  shape.block_table = nullptr;
  shape.mask = attention::MaskKind::full;
  const TensorView out = work_.part_out.rows_slice(0, args.q.rows());
  const BoundCall& call = step.context.calls[kPrefixCall];
  attention::Args run = attention_args(spec_, args.q, out.split_heads(spec_.q_heads),
                                       expand(step, prefix, *args.kv_b), nullptr);
  run.lse = work_.part_lse;
  call.backend->plan(shape, call.plan, step.stream());
  call.backend->run(shape, run, call.plan, step.stream());

  attention::MergeArgs merge;
  merge.parts[0] = {static_cast<const float*>(args.out.data), work_.lse};
  merge.parts[1] = {static_cast<const float*>(out.data), work_.part_lse};
  merge.part_count = 2;
  merge.rows = args.q.rows();
  merge.heads = spec_.q_heads;
  merge.dim = spec_.v_dim;
  merge.out = static_cast<float*>(args.out.data);
  merge.out_row_stride = args.out.stride[0];
  merge.lse = work_.lse;
  attention::merge(merge, step.stream());
}

void MlaExtend::run(const Step& step, const MlaExtendArgs& args) {
  QUIRE_CHECK(args.q.dtype == DType::f32, "parts are merged in float32, not {}", to_string(args.q.dtype));
  if (args.q.rows() == 0) return;
  run_own(step, args);
  for (const Pass& pass : passes_) run_pass(step, args, pass);
}

}  // namespace quire::model
