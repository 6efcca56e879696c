#include "record/replay/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "platform/cpu/isa.h"
#include "tensor/values.h"

namespace quire::record {

using attention::Args;
using attention::Problem;
using attention::StepShape;

std::vector<TableRow> all_rows() {
  std::vector<TableRow> rows;
  for (const platform::Kind kind : {platform::Kind::cpu, platform::Kind::cuda})
    for (const attention::Backend& row : attention::backends(kind))
      if (row.make != nullptr) rows.push_back({row, kind});
  return rows;
}

Result<std::unique_ptr<Runner>> Runner::create(const TableRow& row, const EngineFrame& engine, bool exact,
                                               const conformance::Fault* fault) {
  std::unique_ptr<Runner> runner(new Runner(row, engine, exact, fault));
  // Never more threads than this machine has, whatever the file says.
  runner->threads_ = std::min(engine.threads, platform::cpu::usable_threads());
  QUIRE_TRY(device, platform::open_device(platform::to_string(row.platform), {.compute = runner->threads_}));
  runner->device_ = std::move(device);
  runner->stream_ = runner->device_->make_stream();
  return runner;
}

// The recorded problem on this row's device. Where a row does not take the recorded query type (a record of
// another platform), it is given float32.
Problem Runner::problem_of(std::uint32_t call, bool parts) const {
  Problem problem = engine_.calls[call].problem;
  problem.platform = device_->info().kind;
  problem.arch = device_->info().arch;
  if (parts) problem.features |= attention::kPart;
  Problem plain = problem;
  plain.q_type = DType::f32;
  if (exact_ || attention::supports(row_.backend, problem)) return plain;
  return problem;
}

std::string Runner::refusal(std::uint32_t call, bool parts) const {
  const auto reason = attention::supports(row_.backend, problem_of(call, parts));
  return reason ? reason->text : "";
}

bool Runner::shows_fault(std::uint32_t call) const {
  return fault_ == nullptr || conformance::can_show(*fault_, problem_of(call, false));
}

Runner::Instance& Runner::instance_of(std::uint32_t call, bool parts) {
  Instance& instance = instances_[{call, parts}];
  if (instance.attention != nullptr) return instance;
  instance.problem = problem_of(call, parts);
  instance.attention = row_.backend.make(instance.problem, *device_);
  if (fault_ != nullptr && conformance::can_show(*fault_, instance.problem))
    instance.attention = conformance::with_fault(*fault_, instance.problem, std::move(instance.attention));
  return instance;
}

Result<void*> Runner::room(std::int64_t bytes) {
  QUIRE_TRY(buffer, device_->allocate(std::max<std::int64_t>(bytes, 1), "replay"));
  placed_.push_back(std::move(buffer));
  return placed_.back()->data();
}

Result<const void*> Runner::place(const void* data, std::int64_t bytes) {
  if (device_->info().kind == platform::Kind::cpu || bytes == 0) return data;
  QUIRE_TRY(target, room(bytes));
  stream_->copy(target, data, bytes);
  return static_cast<const void*>(target);
}

template <class T>
Status Runner::place(const std::vector<T>& list, const T*& target) {
  if (list.empty()) return {};
  QUIRE_TRY(data,
            place(static_cast<const void*>(list.data()), static_cast<std::int64_t>(list.size() * sizeof(T))));
  target = static_cast<const T*>(data);
  return {};
}

Status Runner::place_shape(const CallFrame& f, const KeyParts* parts, StepShape& shape) {
  shape.batch = f.batch();
  shape.total_q = f.total_q;
  shape.max_q = f.max_q;
  shape.max_kv = f.max_kv;
  shape.mask = f.mask;
  shape.mask_width = f.mask_width;
  shape.tree_words = f.tree_words;
  QUIRE_TRY_STATUS(place(f.q_offsets, shape.q_offsets));
  QUIRE_TRY_STATUS(place(f.kv_lens, shape.kv_lens));
  QUIRE_TRY_STATUS(place(f.row_begin, shape.row_begin));
  QUIRE_TRY_STATUS(place(f.row_end, shape.row_end));
  QUIRE_TRY_STATUS(place(f.tree_bits, shape.tree_bits));
  QUIRE_TRY_STATUS(place(f.tree_base, shape.tree_base));
  QUIRE_TRY_STATUS(place(f.tree_depth, shape.tree_depth));
  QUIRE_TRY_STATUS(place(parts != nullptr ? parts->begin : f.part_begin, shape.part_begin));
  return place(parts != nullptr ? parts->end : f.part_end, shape.part_end);
}

Status Runner::place_paged(const CallFrame& f, const LayerCache& cache, StepShape& shape, KvView& view) {
  const std::int32_t page_size = engine_.calls[f.call].problem.page_size;
  const auto entries = [&](std::int32_t kv_len) { return (kv_len + page_size - 1) / page_size; };
  for (const std::int32_t kv_len : f.kv_lens)
    shape.table_stride = std::max<std::int64_t>(shape.table_stride, entries(kv_len));
  shape.table_stride = std::max<std::int64_t>(shape.table_stride, 1);
  table_.assign(f.kv_lens.size() * static_cast<std::size_t>(shape.table_stride), 0);
  std::size_t at = 0;
  for (std::size_t i = 0; i < f.kv_lens.size(); ++i)
    for (std::int32_t e = 0; e < entries(f.kv_lens[i]); ++e)
      table_[i * static_cast<std::size_t>(shape.table_stride) + static_cast<std::size_t>(e)] =
          cache.index_of(f.table[at++]);
  QUIRE_TRY_STATUS(place(table_, shape.block_table));
  const auto plane = [&](const Plane& from) {
    return place(static_cast<const void*>(from.data()), static_cast<std::int64_t>(from.bytes()));
  };
  view = cache.view();
  QUIRE_TRY(k, plane(cache.k()));
  QUIRE_TRY(v, plane(cache.v()));
  view.k = const_cast<void*>(k);  // rows only read it
  view.v = &cache.v() == &cache.k() ? view.k : const_cast<void*>(v);
  if (view.format.scale != KvScaleKind::token_head) return {};
  QUIRE_TRY(k_scale, plane(cache.k_scale()));
  QUIRE_TRY(v_scale, plane(cache.v_scale()));
  view.k_scale = static_cast<const float*>(k_scale);
  view.v_scale = static_cast<const float*>(v_scale);
  return {};
}

Status Runner::place_dense(const CallFrame& f, StepShape& shape, KvView& view) {
  const Problem& p = engine_.calls[f.call].problem;
  QUIRE_TRY_STATUS(place(f.kv_offsets, shape.kv_offsets));
  const std::uint8_t* k = nullptr;
  const std::uint8_t* v = nullptr;
  QUIRE_TRY_STATUS(place(f.dense_k, k));
  QUIRE_TRY_STATUS(place(f.dense_v, v));
  view.format = p.kv;
  view.k = const_cast<std::uint8_t*>(k);
  view.v = const_cast<std::uint8_t*>(v);
  view.k_stride = {0, k_row_bytes(p), p.kv_heads * k_row_bytes(p),
                   static_cast<std::int64_t>(dtype_bytes(p.kv.k_type))};
  view.v_stride = {0, v_row_bytes(p), p.kv_heads * v_row_bytes(p),
                   static_cast<std::int64_t>(dtype_bytes(p.kv.v_type))};
  return {};
}

Status Runner::place_queries(const CallFrame& f, const Problem& problem, Args& args) {
  const Problem& recorded = engine_.calls[f.call].problem;
  const std::int64_t values = std::int64_t{f.total_q} * problem.q_heads * problem.qk_dim;
  const void* q = f.q.data();
  auto bytes = static_cast<std::int64_t>(f.q.size());
  if (recorded.q_type != problem.q_type) {
    exact_q_.resize(static_cast<std::size_t>(values));
    for (std::int64_t i = 0; i < values; ++i)
      exact_q_[static_cast<std::size_t>(i)] = load_value(recorded.q_type, f.q.data(), i);
    q = exact_q_.data();
    bytes = values * static_cast<std::int64_t>(sizeof(float));
  }
  QUIRE_TRY(placed, place(q, bytes));
  args.q = placed;
  args.q_head_stride = problem.qk_dim;
  args.q_row_stride = std::int64_t{problem.q_heads} * problem.qk_dim;
  args.out_head_stride = problem.v_dim;
  args.out_row_stride = std::int64_t{problem.q_heads} * problem.v_dim;
  QUIRE_TRY(out,
            room(f.total_q * args.out_row_stride * static_cast<std::int64_t>(dtype_bytes(problem.q_type))));
  args.out = out;
  if ((problem.features & attention::kLse) != 0) {
    QUIRE_TRY(lse,
              room(std::int64_t{f.total_q} * problem.q_heads * static_cast<std::int64_t>(sizeof(float))));
    args.lse = static_cast<float*>(lse);
  }
  args.scale = f.scale;
  args.q_descale = f.q_descale;
  args.softcap = f.softcap;
  args.sparse.index_heads = f.index_heads;
  args.sparse.k = f.sparse_k;
  QUIRE_TRY_STATUS(place(f.sparse, args.sparse.index));
  if (problem.kv.scale != KvScaleKind::token_head) {
    QUIRE_TRY_STATUS(place(f.k_scale, args.kv.k_scale));
    QUIRE_TRY_STATUS(place(f.v_scale, args.kv.v_scale));
  }
  return place(f.sink, args.sink);
}

Status Runner::run_placed(Instance& instance, const StepShape& shape, const Args& args) {
  attention::Limits limits;
  limits.max_batch = shape.batch;
  limits.max_total_q = shape.total_q;
  limits.max_q = shape.max_q;
  limits.max_kv = shape.max_kv;
  limits.threads = threads_;
  const std::int64_t bytes = std::max<std::int64_t>(instance.attention->workspace_bytes(limits), 1);
  if (instance.plan == nullptr || instance.plan->bytes() < bytes) {
    QUIRE_TRY(plan, device_->allocate(bytes, "replay"));
    instance.plan = std::move(plan);
    stream_->fill(instance.plan->data(), 0, bytes);
  }
  // What a row does not write shows as NaN.
  const auto out_bytes = static_cast<std::int64_t>(dtype_bytes(instance.problem.q_type));
  stream_->fill(args.out, 0xff, shape.total_q * args.out_row_stride * out_bytes);
  stream_->synchronize();
  const attention::PlanBuffer buffer{instance.plan->data(), instance.plan->bytes()};
  instance.attention->plan(shape, buffer, *stream_);
  instance.attention->run(shape, args, buffer, *stream_);
  stream_->synchronize();
  return {};
}

Results Runner::fetch(const Problem& problem, const StepShape& shape, const Args& args) {
  const std::int64_t values = shape.total_q * args.out_row_stride;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(problem.q_type));
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(values * bytes));
  Results results;
  if (!raw.empty()) stream_->copy(raw.data(), args.out, values * bytes);
  if (args.lse != nullptr && shape.total_q > 0) {
    results.lse.resize(static_cast<std::size_t>(shape.total_q) * static_cast<std::size_t>(problem.q_heads));
    stream_->copy(results.lse.data(), args.lse,
                  static_cast<std::int64_t>(results.lse.size() * sizeof(float)));
  }
  stream_->synchronize();
  results.out.resize(static_cast<std::size_t>(values));
  for (std::int64_t i = 0; i < values; ++i)
    results.out[static_cast<std::size_t>(i)] = load_value(problem.q_type, raw.data(), i);
  return results;
}

Result<Results> Runner::run(const CallFrame& frame, const Cache& cache, const KeyParts* parts) {
  const RecordedCall& call = engine_.calls[frame.call];
  Instance& instance = instance_of(frame.call, parts != nullptr);
  placed_.clear();
  StepShape shape;
  Args args;
  QUIRE_TRY_STATUS(place_shape(frame, parts, shape));
  if (call.problem.source == attention::KvSource::paged) {
    QUIRE_TRY_STATUS(place_paged(frame, cache.of(frame, call), shape, args.kv));
  } else {
    QUIRE_TRY_STATUS(place_dense(frame, shape, args.kv));
  }
  QUIRE_TRY_STATUS(place_queries(frame, instance.problem, args));
  if (shape.total_q > 0) QUIRE_TRY_STATUS(run_placed(instance, shape, args));
  Results results = fetch(instance.problem, shape, args);
  placed_.clear();
  return results;
}

}  // namespace quire::record
