#include "record/check.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire::record {
namespace {

using attention::KvSource;
using attention::MaskKind;
using attention::Problem;

// With these bounds no product below leaves 63 bits.
constexpr std::int32_t kMaxHeads = 1 << 12;
constexpr std::int32_t kMaxDim = 1 << 12;
constexpr std::int32_t kMaxTokens = 1 << 24;  // of a context, of a step
constexpr std::int32_t kMaxLayer = 1 << 16;
constexpr std::int32_t kMaxThreads = 1024;
constexpr std::size_t kMaxCalls = 64;
constexpr std::int32_t kMaxPage = 256;

bool within(std::int64_t value, std::int64_t low, std::int64_t high) { return value >= low && value <= high; }

bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16 || type == DType::fp8_e4m3;
}

Status wrong(std::string_view what) {
  return bad_input(fmt::format("the record is damaged: {} does not fit the rest; record again", what));
}

Status check_problem(const Problem& p) {
  if (!within(p.q_heads, 1, kMaxHeads) || !within(p.kv_heads, 1, p.q_heads) || p.q_heads % p.kv_heads != 0)
    return wrong("a number of heads");
  if (!within(p.qk_dim, 1, kMaxDim) || !within(p.v_dim, 1, kMaxDim)) return wrong("a head dimension");
  if (!is_float(p.q_type) || p.q_type == DType::fp8_e4m3) return wrong("a query type");
  if (p.phase > attention::Phase::extend || p.source > KvSource::dense || p.mask > MaskKind::rows ||
      p.order > PageOrder::layer_first || p.platform > platform::Kind::cuda)
    return wrong("an attention call");
  if (p.source == KvSource::paged && !within(p.page_size, 1, kMaxPage)) return wrong("a page size");
  return recordable(p);
}

// Arrays of a shape that only some calls have: all there with the right length, or none.
template <class T>
bool sized(const std::vector<T>& list, bool used, std::int64_t count) {
  return static_cast<std::int64_t>(list.size()) == (used ? count : 0);
}

Status check_lengths(const CallFrame& f, std::int32_t max_context) {
  const std::size_t batch = f.kv_lens.size();
  if (!within(f.total_q, 0, kMaxTokens) || !within(f.max_q, 0, kMaxTokens) ||
      !within(f.max_kv, 0, max_context))
    return wrong("a length");
  if (f.q_offsets.size() != batch + 1 || f.q_offsets[0] < 0 || f.q_offsets[batch] > f.total_q)
    return wrong("a query offset");
  for (std::size_t i = 0; i < batch; ++i) {
    if (!within(std::int64_t{f.q_offsets[i + 1]} - f.q_offsets[i], 0, f.max_q))
      return wrong("a query offset");
    if (!within(f.kv_lens[i], 0, f.max_kv)) return wrong("a key length");
  }
  if (!within(f.first_token, 0, kMaxTokens)) return wrong("a token row");
  return {};
}

Status check_masks(const CallFrame& f, const Problem& p) {
  const auto has = [&](std::uint32_t feature) { return (p.features & feature) != 0; };
  const bool wide = f.mask == MaskKind::window || f.mask == MaskKind::chunked;
  if (f.mask != p.mask || (wide && f.mask_width < 1)) return wrong("a mask");
  if (!sized(f.row_begin, f.mask == MaskKind::rows, f.total_q) || f.row_end.size() != f.row_begin.size())
    return wrong("a row interval");
  const bool tree = !f.tree_bits.empty();
  if (tree && (!has(attention::kTree) || !within(f.tree_words, 1, attention::kMaxTree / 64)))
    return wrong("a tree");
  if (!sized(f.tree_bits, tree, std::int64_t{f.total_q} * f.tree_words) ||
      !sized(f.tree_base, tree, f.batch()) || !sized(f.tree_depth, tree, f.total_q))
    return wrong("a tree");
  for (std::size_t i = 0; i < f.tree_base.size(); ++i)
    if (!within(f.tree_base[i], 0, f.kv_lens[i])) return wrong("a tree");
  for (const std::int32_t depth : f.tree_depth)
    if (!within(depth, 0, kMaxTokens)) return wrong("a tree");
  const bool parts = !f.part_begin.empty();
  if ((parts && !has(attention::kPart)) || !sized(f.part_begin, parts, f.batch()) ||
      !sized(f.part_end, parts, f.batch()))
    return wrong("a part");
  const bool sparse = !f.sparse.empty();
  if (sparse && (!has(attention::kSparse) || !within(f.index_heads, 1, p.q_heads) ||
                 p.q_heads % f.index_heads != 0 || !within(f.sparse_k, 1, kMaxTokens)))
    return wrong("a sparse index");
  if (!sized(f.sparse, sparse, std::int64_t{f.total_q} * f.index_heads * f.sparse_k))
    return wrong("a sparse index");
  return {};
}

Status check_layer_arguments(const CallFrame& f, const Problem& p) {
  const auto rows = std::int64_t{f.total_q} * p.q_heads;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(p.q_type));
  if (!sized(f.q, true, rows * p.qk_dim * bytes) || !sized(f.out, true, rows * p.v_dim * bytes) ||
      !sized(f.lse, !f.lse.empty(), rows))
    return wrong("queries or results");
  const auto has = [&](std::uint32_t feature) { return (p.features & feature) != 0; };
  if ((f.softcap != 0 && !has(attention::kSoftcap)) || (!f.sink.empty() && !has(attention::kSink)) ||
      !sized(f.sink, !f.sink.empty(), p.q_heads))
    return wrong("a softcap or sink");
  const std::int64_t scales = fixed_scales(p);
  if (!sized(f.k_scale, true, scales) || !sized(f.v_scale, true, scales)) return wrong("a KV scale");
  return {};
}

Status check_paged(const CallFrame& f, const Problem& p) {
  std::int64_t entries = 0;
  for (const std::int32_t kv_len : f.kv_lens) entries += (kv_len + p.page_size - 1) / p.page_size;
  if (!sized(f.table, true, entries) || !f.kv_offsets.empty() || !f.dense_k.empty() || !f.dense_v.empty())
    return wrong("a block table");
  for (const KvRows& rows : f.kv) {
    if (rows.page == 0 || !within(rows.begin, 0, p.page_size - 1) ||
        !within(rows.count, 1, p.page_size - rows.begin))
      return wrong("a stretch of a page");
    const std::int64_t heads = std::int64_t{p.kv_heads} * rows.count;
    const bool scaled = p.kv.scale == KvScaleKind::token_head;
    if (!sized(rows.k, true, heads * k_row_bytes(p)) ||
        !sized(rows.v, !is_latent(p), heads * v_row_bytes(p)) || !sized(rows.k_scale, scaled, heads) ||
        !sized(rows.v_scale, scaled, heads))
      return wrong("a stretch of a page");
  }
  return {};
}

Status check_dense(const CallFrame& f, const Problem& p) {
  if (!sized(f.kv_offsets, true, f.batch()) || !f.table.empty() || !f.kv.empty()) return wrong("dense keys");
  const std::int64_t row = p.kv_heads * k_row_bytes(p);
  const auto tokens = static_cast<std::int64_t>(f.dense_k.size()) / row;
  if (!sized(f.dense_k, true, tokens * row) || !sized(f.dense_v, true, tokens * p.kv_heads * v_row_bytes(p)))
    return wrong("dense keys");
  for (std::size_t i = 0; i < f.kv_lens.size(); ++i)
    if (!within(f.kv_offsets[i], 0, tokens - f.kv_lens[i])) return wrong("a dense offset");
  return {};
}

}  // namespace

Status recordable(const Problem& problem) {
  const KvFormat& kv = problem.kv;
  if (!is_float(kv.k_type) || !is_float(kv.v_type) || kv.scale > KvScaleKind::token_head ||
      kv.packing != KvPacking::plain || kv.tokens_per_entry != 1 || kv.section_count != 0)
    return bad_input(
        "calls over a cache whose rows are not plain rows of one type cannot be recorded: use "
        "--record-layers "
        "none");
  if (problem.source == KvSource::dense && kv.scale != KvScaleKind::none)
    return bad_input("calls over dense keys with scales cannot be recorded: use --record-layers none");
  if (is_latent(problem) && (problem.v_dim > problem.qk_dim || kv.k_type != kv.v_type))
    return bad_input(
        "a latent cache whose V is not a part of K's row cannot be recorded: use --record-layers none");
  return {};
}

Status check(const EngineFrame& frame) {
  if (!within(frame.threads, 1, kMaxThreads) || !within(frame.page_size, 1, kMaxPage) ||
      !within(frame.max_context, 1, kMaxTokens) || frame.calls.size() > kMaxCalls)
    return wrong("the engine's description");
  for (const RecordedCall& call : frame.calls) {
    if (!within(call.group, 0, kMaxLayer) || call.level > attention::Determinism::schedule_invariant)
      return wrong("the engine's description");
    QUIRE_TRY_STATUS(check_problem(call.problem));
  }
  return {};
}

Status check(const StepFrame& frame) {
  const auto rows = static_cast<std::int64_t>(frame.rows.size());
  if (!within(frame.decode_rows, 0, rows) || !within(frame.verify_rows, 0, rows) ||
      !within(frame.extend_rows, 0, rows) || !within(frame.total_q, 0, kMaxTokens))
    return wrong("a plan");
  for (const RecordedRow& row : frame.rows) {
    if (!within(row.query_count, 0, frame.total_q) || !within(row.first_row, 0, frame.total_q) ||
        !within(row.query_begin, 0, kMaxTokens))
      return wrong("a row of a plan");
  }
  return {};
}

Status check(const CallFrame& frame, const EngineFrame& engine) {
  if (frame.call >= engine.calls.size() || !within(frame.layer, 0, kMaxLayer)) return wrong("a call");
  const Problem& problem = engine.calls[frame.call].problem;
  QUIRE_TRY_STATUS(check_lengths(frame, engine.max_context));
  QUIRE_TRY_STATUS(check_masks(frame, problem));
  QUIRE_TRY_STATUS(check_layer_arguments(frame, problem));
  return problem.source == KvSource::paged ? check_paged(frame, problem) : check_dense(frame, problem);
}

}  // namespace quire::record
