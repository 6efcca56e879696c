#include "model/testing/harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "attention/caps.h"
#include "base/check.h"

namespace quire::model::testing {
namespace {

constexpr int kThreads = 2;
const float kScale = 1.0f;  // of fp8 caches

KvFormat kv_format(DType type) {
  KvFormat format;
  format.k_type = type;
  format.v_type = type;
  if (type == DType::fp8_e4m3) format.scale = KvScaleKind::tensor;
  return format;
}

}  // namespace

Result<std::unique_ptr<Harness>> Harness::open(const std::string& path, const HarnessOptions& options) {
  auto harness = std::make_unique<Harness>();
  Harness& h = *harness;
  QUIRE_TRY(checkpoint, checkpoint::open_checkpoint(path));
  h.checkpoint_ = std::move(checkpoint);
  QUIRE_TRY(device, platform::open_device("cpu", platform::ThreadPlan{.compute = kThreads}));
  h.device_ = std::move(device);
  h.ops_ = ops::make_ops(*h.device_);
  QUIRE_TRY(spec, read_spec(*h.checkpoint_));
  h.spec_ = spec;
  h.limits_ = {options.max_rows, options.max_context, options.max_batch};
  h.lengths_.assign(options.max_batch, 0);
  QUIRE_TRY(plan, plan_weights(h.spec_, *h.checkpoint_, *h.ops_, options.load));
  h.weight_plan_ = plan;
  QUIRE_TRY(model, load_model(h.spec_, *h.checkpoint_, *h.ops_, *h.device_, options.load, options.level));
  h.model_ = std::move(model);
  QUIRE_TRY_STATUS(h.bind_attention(options));
  QUIRE_TRY_STATUS(h.make_caches(options));
  QUIRE_TRY_STATUS(h.make_buffers(options));
  h.stream_ = h.device_->make_stream();
  return harness;
}

Status Harness::bind_attention(const HarnessOptions& options) {
  const KvFormat format = kv_format(options.kv_type);
  const std::vector<KvFormat> formats(spec_.groups.size(), format);
  const platform::DeviceInfo& info = device_->info();
  attention::Wish wish;
  wish.all = options.backend;
  wish.page_size = options.page_size;
  QUIRE_TRY(selection, attention::select(attention::backends(info.kind),
                                         attention_calls(spec_, info, DType::f32, formats, options.level),
                                         wish, info.page_order));
  selection_ = selection;
  attention::Limits limits;
  limits.max_batch = options.max_batch;
  limits.max_total_q = options.max_rows;
  limits.max_q = options.max_rows;
  limits.max_kv = options.max_context;
  limits.threads = kThreads;
  for (const attention::Pick& pick : selection_.picks) {
    backends_.push_back(pick.backend->make(pick.call.problem, *device_));
    const std::int64_t bytes = backends_.back()->workspace_bytes(limits);
    QUIRE_TRY(buffer, device_->allocate(std::max<std::int64_t>(bytes, 64), "attention"));
    std::memset(buffer->data(), 0, buffer->bytes());
    calls_.push_back({pick.call.name, backends_.back().get(), {buffer->data(), bytes}});
    buffers_.push_back(std::move(buffer));
  }
  return {};
}

Status Harness::make_caches(const HarnessOptions& options) {
  std::mt19937 random(7);
  std::vector<std::vector<KvView>> views;
  const KvFormat format = kv_format(options.kv_type);
  const float* scale = format.scale == KvScaleKind::tensor ? &kScale : nullptr;
  table_stride_ = (options.max_context + options.page_size - 1) / options.page_size;
  const std::int64_t pages = 1 + options.max_batch * table_stride_;
  for (const KvGroup& declared : kv_groups(spec_)) {
    QUIRE_TRY(layout, make_kv_layout(declared.shapes, format, options.page_size, selection_.order, pages));
    QUIRE_TRY(arena, device_->allocate(layout.page_stride() * pages, "kv"));
    std::memset(arena->data(), 0xff, arena->bytes());  // NaN in every format
    std::vector<KvView> group_views;
    for (std::size_t i = 0; i < declared.layers.size(); ++i)
      group_views.push_back(layout.view(arena->data(), static_cast<int>(i), scale, scale));
    views.push_back(std::move(group_views));
    Group group{layout, std::move(arena), std::vector<std::uint32_t>(options.max_batch * table_stride_), {}};
    std::iota(group.table.begin(), group.table.end(), 1u);
    std::shuffle(group.table.begin(), group.table.end(), random);
    groups_.push_back(std::move(group));
  }
  model_->set_kv(views);
  return {};
}

Status Harness::make_buffers(const HarnessOptions& options) {
  const auto allocate = [&](std::int64_t bytes, const char* owner) -> Result<void*> {
    QUIRE_TRY(buffer, device_->allocate(std::max<std::int64_t>(bytes, 64), owner));
    std::memset(buffer->data(), 0xff, buffer->bytes());
    buffers_.push_back(std::move(buffer));
    return buffers_.back()->data();
  };
  const std::int64_t activations = model_->activation_bytes(limits_);
  QUIRE_TRY(activation_data, allocate(activations, "activations"));
  model_->set_activations(activation_data, activations, limits_);
  const ops::OpsLimits ops = ops_limits(spec_, limits_, options.max_rows, kThreads);
  const std::int64_t workspace = ops_->workspace_bytes(ops);
  QUIRE_TRY(workspace_data, allocate(workspace, "ops"));
  ops_->set_workspace(workspace_data, workspace, ops);
  QUIRE_TRY(hidden, allocate(std::int64_t{options.max_rows} * spec_.hidden * 4, "hidden"));
  QUIRE_TRY(logits, allocate(std::int64_t{options.max_rows} * spec_.vocab * 4, "logits"));
  hidden_ = static_cast<float*>(hidden);
  logits_ = static_cast<float*>(logits);
  return {};
}

void Harness::add_chunk(const Chunk& chunk, Phase& phase) {
  std::int32_t& length = lengths_[chunk.sequence];
  const auto count = static_cast<std::int32_t>(chunk.tokens.size());
  QUIRE_CHECK(length + count <= limits_.max_context, "length={} count={}", length, count);
  if (phase.q_offsets.empty()) phase.q_offsets.push_back(0);
  for (const std::int32_t token : chunk.tokens) {
    tokens_.push_back(token);
    positions_.push_back(length);
    for (Group& group : groups_) {
      const std::int64_t page_size = group.layout.page_size();
      const std::int64_t page = group.table[chunk.sequence * table_stride_ + length / page_size];
      group.write_slot.push_back(page * page_size + length % page_size);
    }
    ++length;
  }
  phase.sequences.push_back(static_cast<std::uint32_t>(chunk.sequence));
  phase.q_offsets.push_back(phase.q_offsets.back() + count);
  phase.kv_lens.push_back(length);
  phase.max_q = std::max(phase.max_q, count);
  phase.max_kv = std::max(phase.max_kv, length);
}

attention::StepShape Harness::shape(const Phase& phase, const std::vector<std::uint32_t>& table) const {
  attention::StepShape shape;
  shape.batch = static_cast<std::int32_t>(phase.kv_lens.size());
  if (shape.batch == 0) return shape;
  shape.total_q = phase.q_offsets.back();
  shape.max_q = phase.max_q;
  shape.max_kv = phase.max_kv;
  shape.q_offsets = phase.q_offsets.data();
  shape.kv_lens = phase.kv_lens.data();
  shape.block_table = table.data();
  shape.table_stride = table_stride_;
  return shape;
}

std::vector<float> Harness::step(const std::vector<Chunk>& chunks) {
  tokens_.clear();
  positions_.clear();
  for (Group& group : groups_) group.write_slot.clear();
  Phase decode, extend;
  std::vector<std::int32_t> prefix, q_len;
  for (const Chunk& chunk : chunks) {
    const bool one = chunk.tokens.size() == 1;
    QUIRE_CHECK(!one || extend.kv_lens.empty(), "a decode chunk of sequence {} behind an extend chunk",
                chunk.sequence);
    if (!one) prefix.push_back(lengths_[chunk.sequence]);
    if (!one) q_len.push_back(static_cast<std::int32_t>(chunk.tokens.size()));
    add_chunk(chunk, one ? decode : extend);
  }
  // Each phase reads rows of the tables in its own order.
  std::vector<std::vector<std::uint32_t>> tables;
  const auto rows_of = [&](const Group& group, const Phase& phase) {
    std::vector<std::uint32_t> rows;
    for (const std::uint32_t s : phase.sequences)
      rows.insert(rows.end(), group.table.begin() + s * table_stride_,
                  group.table.begin() + (s + 1) * table_stride_);
    return rows;
  };
  for (const Group& group : groups_) {
    tables.push_back(rows_of(group, decode));
    tables.push_back(rows_of(group, extend));
  }
  std::vector<GroupInputs> group_inputs(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    group_inputs[g].write_slot = groups_[g].write_slot.data();
    group_inputs[g].decode = shape(decode, tables[2 * g]);
    group_inputs[g].extend = shape(extend, tables[2 * g + 1]);
  }
  StepInputs inputs;
  inputs.total_q = static_cast<std::int32_t>(tokens_.size());
  inputs.decode_q = static_cast<std::int32_t>(decode.kv_lens.size());
  inputs.tokens = tokens_.data();
  inputs.positions = positions_.data();
  inputs.groups = group_inputs;
  inputs.extend_prefix = prefix;
  inputs.extend_q_len = q_len;
  const TensorView hidden = TensorView::matrix(hidden_, DType::f32, inputs.total_q, spec_.hidden);
  const TensorView logits = TensorView::matrix(logits_, DType::f32, inputs.total_q, spec_.vocab);
  const StepContext context{*stream_, *ops_, calls_};
  model_->forward(context, inputs, hidden);
  model_->logits(context, hidden, logits);
  stream_->synchronize();
  return {logits_, logits_ + std::int64_t{inputs.total_q} * spec_.vocab};
}

}  // namespace quire::model::testing
