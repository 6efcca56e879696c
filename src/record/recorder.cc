#include "record/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "record/check.h"
#include "record/fetch.h"

namespace quire::record {
namespace {

using attention::Args;
using attention::MaskKind;
using attention::Problem;
using attention::StepShape;

// The first key that some row of the sequence sees: pages before it may belong to others by now.
std::int64_t first_visible(const CallFrame& f, std::size_t sequence) {
  const std::int64_t q_len = f.q_offsets[sequence + 1] - f.q_offsets[sequence];
  const std::int64_t first = std::max<std::int64_t>(f.kv_lens[sequence] - q_len, 0);
  switch (f.mask) {
    case MaskKind::window:
      return std::max<std::int64_t>(first - f.mask_width + 1, 0);
    case MaskKind::chunked:
      return first / f.mask_width * f.mask_width;
    default:
      return 0;
  }
}

std::int64_t bytes_of(DType type) { return static_cast<std::int64_t>(dtype_bytes(type)); }

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::create(const RecorderOptions& options,
                                                   const EngineFrame& engine) {
  if (!options.layers.empty())
    for (const RecordedCall& call : engine.calls) {
      const Status status = recordable(call.problem);
      if (!status.ok()) return bad_input(fmt::format("--record: {}: {}", call.name, status.error().message));
    }
  std::unique_ptr<Recorder> recorder(new Recorder(options));
  std::vector<std::byte> bytes;
  append(engine, bytes);
  QUIRE_TRY(file, FileWriter::create(options.folder, options.limit_bytes, bytes));
  recorder->engine_ = engine;
  recorder->file_ = std::move(file);
  return recorder;
}

bool Recorder::wants(std::uint64_t step) const {
  return file_->is_open() && options_.steps.contains(static_cast<std::int64_t>(step));
}

Recorder::LayerPages& Recorder::pages_of(std::uint32_t group, std::int32_t layer) {
  for (LayerPages& pages : layers_)
    if (pages.group == group && pages.layer == layer) return pages;
  return layers_.emplace_back(LayerPages{group, layer, {}});
}

void Recorder::forget(std::uint32_t group, std::uint32_t page) {
  for (LayerPages& pages : layers_)
    if (pages.group == group && page < pages.known.size()) pages.known[page] = 0;
}

void Recorder::begin_step(const StepFrame& frame) {
  pending_.clear();
  overflown_ = false;
  frame_.step = frame.step;
  append(frame, pending_);
}

void Recorder::end_step(const OutcomeFrame& frame) {
  if (overflown_) return;
  append(frame, pending_);
  file_->write_step(pending_);
  if (!file_->is_open()) std::vector<std::byte>().swap(pending_);
}

void Recorder::call(std::uint32_t index, std::int32_t layer, std::int32_t first_token, const StepShape& shape,
                    const Args& args, platform::Stream& stream) {
  if (overflown_ || !options_.layers.contains(layer)) return;
  const RecordedCall& call = engine_.calls[index];
  frame_.call = index;
  frame_.layer = layer;
  frame_.first_token = first_token;
  fetch_shape(shape, stream);
  fetch_layer(shape, args, stream);
  frame_.kv.clear();
  frame_.dense_k.clear();
  frame_.dense_v.clear();
  if (call.problem.source == attention::KvSource::dense) {
    fetch_dense(args, stream);
  } else {
    fetch_table(shape, call.problem.page_size, stream);
    fetch_pages(args, layer, stream);
  }
  append(frame_, pending_);
  if (file_->fits(static_cast<std::int64_t>(pending_.size()))) return;
  overflown_ = true;
  std::vector<std::byte>().swap(pending_);
  file_->end(Ended::limit, fmt::format("the record has reached its limit of {} bytes", file_->limit()));
}

void Recorder::fetch_shape(const StepShape& shape, platform::Stream& stream) {
  CallFrame& f = frame_;
  f.total_q = shape.total_q;
  f.max_q = shape.max_q;
  f.max_kv = shape.max_kv;
  f.mask = shape.mask;
  f.mask_width = shape.mask_width;
  f.tree_words = shape.tree_words;
  Fetch fetch(stream);
  fetch.array(f.q_offsets, shape.q_offsets, shape.batch + 1);
  fetch.array(f.kv_lens, shape.kv_lens, shape.batch);
  fetch.array(f.kv_offsets, shape.kv_offsets, shape.batch);
  fetch.array(f.row_begin, shape.row_begin, shape.total_q);
  fetch.array(f.row_end, shape.row_end, shape.total_q);
  fetch.array(f.tree_bits, shape.tree_bits, std::int64_t{shape.total_q} * shape.tree_words);
  fetch.array(f.tree_base, shape.tree_base, shape.batch);
  fetch.array(f.tree_depth, shape.tree_depth, shape.total_q);
  fetch.array(f.part_begin, shape.part_begin, shape.batch);
  fetch.array(f.part_end, shape.part_end, shape.batch);
  fetch.wait();
}

void Recorder::fetch_layer(const StepShape& shape, const Args& args, platform::Stream& stream) {
  CallFrame& f = frame_;
  const Problem& p = engine_.calls[f.call].problem;
  const std::int64_t q_bytes = bytes_of(p.q_type);
  f.scale = args.scale;
  f.q_descale = args.q_descale;
  f.softcap = args.softcap;
  f.index_heads = args.sparse.index_heads;
  f.sparse_k = args.sparse.k;
  const std::int64_t scales = fixed_scales(p);
  Fetch fetch(stream);
  fetch.rows(f.q, args.q, shape.total_q, args.q_row_stride * q_bytes, p.q_heads, args.q_head_stride * q_bytes,
             p.qk_dim * q_bytes);
  fetch.rows(f.out, args.out, shape.total_q, args.out_row_stride * q_bytes, p.q_heads,
             args.out_head_stride * q_bytes, p.v_dim * q_bytes);
  fetch.array(f.lse, args.lse, std::int64_t{shape.total_q} * p.q_heads);
  fetch.array(f.sink, args.sink, p.q_heads);
  fetch.array(f.k_scale, scales > 0 ? args.kv.k_scale : nullptr, scales);
  fetch.array(f.v_scale, scales > 0 ? args.kv.v_scale : nullptr, scales);
  fetch.array(f.sparse, args.sparse.index,
              std::int64_t{shape.total_q} * args.sparse.index_heads * args.sparse.k);
  fetch.wait();
}

void Recorder::fetch_dense(const Args& args, platform::Stream& stream) {
  CallFrame& f = frame_;
  const Problem& p = engine_.calls[f.call].problem;
  f.table.clear();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < f.kv_lens.size(); ++i)
    tokens = std::max(tokens, f.kv_offsets[i] + f.kv_lens[i]);
  Fetch fetch(stream);
  fetch.rows(f.dense_k, args.kv.k, tokens, args.kv.k_stride.token, p.kv_heads, args.kv.k_stride.head,
             k_row_bytes(p));
  fetch.rows(f.dense_v, args.kv.v, tokens, args.kv.v_stride.token, p.kv_heads, args.kv.v_stride.head,
             v_row_bytes(p));
  fetch.wait();
}

void Recorder::fetch_table(const StepShape& shape, std::int32_t page_size, platform::Stream& stream) {
  CallFrame& f = frame_;
  f.kv_offsets.clear();
  std::int64_t total = 0;
  for (const std::int32_t kv_len : f.kv_lens) total += (kv_len + page_size - 1) / page_size;
  f.table.resize(static_cast<std::size_t>(total));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < f.kv_lens.size(); ++i) {
    const std::int64_t entries = (f.kv_lens[i] + page_size - 1) / page_size;
    if (entries > 0)
      stream.copy(f.table.data() + at, shape.block_table + static_cast<std::int64_t>(i) * shape.table_stride,
                  entries * static_cast<std::int64_t>(sizeof(std::uint32_t)));
    at += entries;
  }
  stream.synchronize();
}

// The stretches of pages that this call sees and the record does not hold.
void Recorder::list_new_rows(LayerPages& pages, std::int32_t page_size) {
  CallFrame& f = frame_;
  std::size_t entry = 0;
  for (std::size_t i = 0; i < f.kv_lens.size(); ++i) {
    const std::int64_t kv_len = f.kv_lens[i];
    const std::int64_t q_len = f.q_offsets[i + 1] - f.q_offsets[i];
    const std::int64_t first = first_visible(f, i);
    for (std::int64_t begin = 0; begin < kv_len; begin += page_size, ++entry) {
      const std::uint32_t page = f.table[entry];
      if (begin + page_size <= first || page == 0) continue;
      if (page >= pages.known.size()) pages.known.resize(page + std::size_t{1}, 0);
      const std::int64_t end = std::min<std::int64_t>(page_size, kv_len - begin);
      const std::int64_t written = std::clamp<std::int64_t>(kv_len - q_len - begin, 0, end);
      const std::int64_t from = std::min<std::int64_t>(pages.known[page], written);
      if (from < end)
        f.kv.push_back(
            {page, static_cast<std::int32_t>(from), static_cast<std::int32_t>(end - from), {}, {}, {}, {}});
      pages.known[page] = static_cast<std::uint16_t>(std::max<std::int64_t>(pages.known[page], end));
    }
  }
}

void Recorder::fetch_pages(const Args& args, std::int32_t layer, platform::Stream& stream) {
  const RecordedCall& call = engine_.calls[frame_.call];
  const Problem& p = call.problem;
  list_new_rows(pages_of(static_cast<std::uint32_t>(call.group), layer), p.page_size);
  Fetch fetch(stream);
  // Heads outside tokens: [kv_heads, count] rows.
  const auto plane = [&](std::vector<std::uint8_t>& to, const void* base, const KvStrides& stride,
                         std::int64_t width, const KvRows& rows) {
    const auto* page =
        static_cast<const std::uint8_t*>(base) + rows.page * stride.page + rows.begin * stride.token;
    fetch.rows(to, page, p.kv_heads, stride.head, rows.count, stride.token, width);
  };
  const auto scales = [&](std::vector<float>& to, const float* base, const KvRows& rows) {
    const KvStrides& stride = args.kv.scale_stride;
    to.resize(static_cast<std::size_t>(p.kv_heads) * static_cast<std::size_t>(rows.count));
    const auto* page = reinterpret_cast<const std::uint8_t*>(base) + rows.page * stride.page;
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(to.size()); ++at)
      stream.copy(to.data() + at,
                  page + at / rows.count * stride.head + (rows.begin + at % rows.count) * stride.token,
                  sizeof(float));
  };
  for (KvRows& rows : frame_.kv) {
    plane(rows.k, args.kv.k, args.kv.k_stride, k_row_bytes(p), rows);
    if (!is_latent(p)) plane(rows.v, args.kv.v, args.kv.v_stride, v_row_bytes(p), rows);
    if (p.kv.scale != KvScaleKind::token_head) continue;
    scales(rows.k_scale, args.kv.k_scale, rows);
    scales(rows.v_scale, args.kv.v_scale, rows);
  }
  fetch.wait();
}

}  // namespace quire::record
