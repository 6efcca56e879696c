#include "attention/conformance/faults.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "attention/conformance/values.h"

namespace quire::conformance {
namespace {

using attention::Args;
using attention::KvSource;
using attention::MaskKind;
using attention::StepShape;

constexpr Fault kFaults[] = {
    {FaultId::mask_off_by_one, "mask_off_by_one", "every row misses its own, newest key"},
    {FaultId::kv_len_stale, "kv_len_stale", "lengths of the step before: without the new keys"},
    {FaultId::window_off_by_one, "window_off_by_one", "the window holds one key more"},
    {FaultId::chunk_border, "chunk_border", "chunks are one key longer"},
    {FaultId::dropped_split, "dropped_split", "the last tile of 64 keys is not merged in"},
    {FaultId::swapped_pages, "swapped_pages", "two entries of the block table are exchanged"},
    {FaultId::page_id_16_bits, "page_id_16_bits", "page ids are cut to 16 bits"},
    {FaultId::stale_scale, "stale_scale", "the K scale of the neighbour is used"},
    {FaultId::v_scale_missing, "v_scale_missing", "V is read without its scale"},
    {FaultId::sink_twice, "sink_twice", "the sink joins the denominator twice"},
    {FaultId::sink_missing, "sink_missing", "the sink is left out"},
    {FaultId::softcap_missing, "softcap_missing", "scores are not capped"},
    {FaultId::window_from_slot, "window_from_slot", "in a tree the interval follows the slot, not the depth"},
    {FaultId::tree_depth_ignored, "tree_depth_ignored", "in a tree the interval follows the tree's base"},
    {FaultId::tree_bits_shifted, "tree_bits_shifted", "each row takes the tree bits of its neighbour"},
    {FaultId::unzeroed_v_tail, "unzeroed_v_tail", "unused slots of the last page enter with weight 0"},
    {FaultId::padded_row_reads_page_0, "padded_row_reads_page_0",
     "a row without keys reads the padding page"},
    {FaultId::idle_rows_not_zeroed, "idle_rows_not_zeroed", "rows of no sequence are not written"},
    {FaultId::part_begin_ignored, "part_begin_ignored", "a part starts at key 0"},
    {FaultId::part_end_ignored, "part_end_ignored", "a part ends at the last key"},
    {FaultId::lse_without_max, "lse_without_max", "lse lacks the largest score (its whole part here)"},
    {FaultId::lse_with_sink, "lse_with_sink", "lse counts the sink"},
    {FaultId::wrong_kv_head, "wrong_kv_head", "query heads read the KV heads in reverse order"},
    {FaultId::latent_v_stride, "latent_v_stride", "V rows of a latent cache are taken to be v_dim apart"},
    {FaultId::q_descale_missing, "q_descale_missing", "q_descale is left out"},
    {FaultId::sparse_ignored, "sparse_ignored", "the sparse index is not applied"},
    {FaultId::batch_dependent, "batch_dependent", "the last bit of a result depends on the batch"},
    {FaultId::merge_weight_wrong, "merge_weight_wrong", "merged parts weigh alike"},
    {FaultId::workspace_overrun, "workspace_overrun", "a row writes past its plan buffer"},
};

// Wrong inputs: what the wrapper gives the row instead. Owns the changed arrays.
struct Changed {
  StepShape shape;
  Args args;
  std::vector<std::int32_t> kv_lens, part_begin, part_end, tree_depth;
  std::vector<std::uint32_t> table;
  std::vector<std::uint64_t> tree_bits;
  std::vector<float> sink, k_scale, v_scale;
};

void own_lengths(Changed& c) {
  c.kv_lens.assign(c.shape.kv_lens, c.shape.kv_lens + c.shape.batch);
  c.shape.kv_lens = c.kv_lens.data();
}

void own_table(Changed& c) {
  c.table.assign(c.shape.block_table, c.shape.block_table + c.shape.batch * c.shape.table_stride);
  c.shape.block_table = c.table.data();
}

// Gives every sequence a part that covers all its keys, for a fault to shorten.
void own_parts(Changed& c) {
  for (std::int32_t i = 0; i < c.shape.batch; ++i) {
    c.part_begin.push_back(c.shape.part_begin ? c.shape.part_begin[i] : 0);
    c.part_end.push_back(c.shape.part_end ? c.shape.part_end[i] : c.shape.kv_lens[i]);
  }
  c.shape.part_begin = c.part_begin.data();
  c.shape.part_end = c.part_end.data();
}

void shorten_lengths(Changed& c, bool by_all_new) {
  own_lengths(c);
  for (std::int32_t i = 0; i < c.shape.batch; ++i) {
    const std::int32_t q_len = c.shape.q_offsets[i + 1] - c.shape.q_offsets[i];
    const std::int32_t by = by_all_new ? q_len : 1;
    auto& kv_len = c.kv_lens[static_cast<std::size_t>(i)];
    if (q_len > 0 && kv_len - by >= q_len) kv_len -= by;
  }
}

void swap_pages(Changed& c) {
  own_table(c);
  const auto entry = [&](std::int32_t i) -> std::uint32_t& {
    return c.table[static_cast<std::size_t>(i * c.shape.table_stride)];
  };
  const auto valid = [](std::uint32_t id) { return id != 0 && id != 0xffffffffu; };
  for (std::int32_t i = 0; i + 1 < c.shape.batch; i += 2)
    if (valid(entry(i)) && valid(entry(i + 1))) std::swap(entry(i), entry(i + 1));
  if (c.shape.batch != 1) return;
  const std::int64_t last = (c.shape.kv_lens[0] - 1) / c.args.kv.page_size;
  if (last > 0 && valid(c.table[0]) && valid(c.table[static_cast<std::size_t>(last)]))
    std::swap(c.table[0], c.table[static_cast<std::size_t>(last)]);
}

void cut_page_ids(Changed& c) {
  own_table(c);
  for (std::uint32_t& id : c.table)
    if (id != 0xffffffffu) id &= 0xffff;
}

void neighbour_scale(Changed& c, const attention::Problem& p) {
  switch (p.kv.scale) {
    case KvScaleKind::tensor:
      c.k_scale = {c.args.kv.k_scale[0] * 1.5f};
      c.args.kv.k_scale = c.k_scale.data();
      return;
    case KvScaleKind::layer_head:
      c.k_scale.assign(c.args.kv.k_scale, c.args.kv.k_scale + p.kv_heads);
      std::rotate(c.k_scale.begin(), c.k_scale.begin() + 1, c.k_scale.end());
      if (p.kv_heads == 1) c.k_scale[0] *= 1.5f;
      c.args.kv.k_scale = c.k_scale.data();
      return;
    case KvScaleKind::token_head:
      c.args.kv.k_scale = reinterpret_cast<const float*>(reinterpret_cast<const char*>(c.args.kv.k_scale) +
                                                         c.args.kv.scale_stride.token);
      return;
    default:
      return;
  }
}

void no_v_scale(Changed& c, const attention::Problem& p) {
  if (p.kv.scale != KvScaleKind::tensor && p.kv.scale != KvScaleKind::layer_head) return;
  c.v_scale.assign(static_cast<std::size_t>(p.kv_heads), 1.0f);
  c.args.kv.v_scale = c.v_scale.data();
}

void reverse_heads(KvStrides& stride, void*& base, std::int32_t heads) {
  base = static_cast<char*>(base) + (heads - 1) * stride.head;
  stride.head = -stride.head;
}

void tree_from(Changed& c, bool slot) {
  const StepShape& s = c.shape;
  c.tree_depth.assign(s.tree_depth, s.tree_depth + s.total_q);
  for (std::int32_t i = 0; i < s.batch; ++i)
    for (std::int32_t r = s.q_offsets[i]; r < s.q_offsets[i + 1]; ++r)
      c.tree_depth[static_cast<std::size_t>(r)] =
          slot ? s.kv_lens[i] - (s.q_offsets[i + 1] - r) - s.tree_base[i] : 0;
  c.shape.tree_depth = c.tree_depth.data();
}

void shift_tree_bits(Changed& c) {
  const std::int64_t words = std::int64_t{c.shape.total_q} * c.shape.tree_words;
  c.tree_bits.assign(c.shape.tree_bits, c.shape.tree_bits + words);
  std::rotate(c.tree_bits.begin(), c.tree_bits.begin() + std::min<std::int64_t>(c.shape.tree_words, words),
              c.tree_bits.end());
  c.shape.tree_bits = c.tree_bits.data();
}

void drop_last_tile(Changed& c) {
  own_parts(c);
  for (std::int32_t i = 0; i < c.shape.batch; ++i) {
    const std::int32_t kv_len = c.shape.kv_lens[i];
    auto& end = c.part_end[static_cast<std::size_t>(i)];
    if (kv_len > 64) end = std::min(end, (kv_len - 1) / 64 * 64);
  }
}

void give_empty_rows_a_key(Changed& c) {
  own_lengths(c);
  own_table(c);
  for (std::int32_t i = 0; i < c.shape.batch; ++i) {
    if (c.kv_lens[static_cast<std::size_t>(i)] != 0) continue;
    c.kv_lens[static_cast<std::size_t>(i)] = 1;
    c.table[static_cast<std::size_t>(i * c.shape.table_stride)] = 0;
  }
}

void change_sink(Changed& c, const attention::Problem& p) {
  if (c.args.sink == nullptr) return;
  c.sink.assign(c.args.sink, c.args.sink + p.q_heads);
  for (float& s : c.sink) s += std::log(2.0f);
  c.args.sink = c.sink.data();
}

void spoil_parts(Changed& c, bool begin) {
  own_parts(c);
  for (std::int32_t i = 0; i < c.shape.batch; ++i) {
    if (begin)
      c.part_begin[static_cast<std::size_t>(i)] = 0;
    else
      c.part_end[static_cast<std::size_t>(i)] = c.shape.kv_lens[i];
  }
}

void spoil_inputs(FaultId id, Changed& c, const attention::Problem& p) {
  switch (id) {
    case FaultId::mask_off_by_one:
      return shorten_lengths(c, false);
    case FaultId::kv_len_stale:
      return shorten_lengths(c, true);
    case FaultId::window_off_by_one:
    case FaultId::chunk_border:
      c.shape.mask_width += 1;
      return;
    case FaultId::dropped_split:
      return drop_last_tile(c);
    case FaultId::swapped_pages:
      return swap_pages(c);
    case FaultId::page_id_16_bits:
      return cut_page_ids(c);
    case FaultId::stale_scale:
      return neighbour_scale(c, p);
    case FaultId::v_scale_missing:
      return no_v_scale(c, p);
    case FaultId::sink_twice:
      return change_sink(c, p);
    case FaultId::sink_missing:
      c.args.sink = nullptr;
      return;
    case FaultId::softcap_missing:
      c.args.softcap = 0;
      return;
    case FaultId::window_from_slot:
      return tree_from(c, true);
    case FaultId::tree_depth_ignored:
      return tree_from(c, false);
    case FaultId::tree_bits_shifted:
      return shift_tree_bits(c);
    case FaultId::padded_row_reads_page_0:
      return give_empty_rows_a_key(c);
    case FaultId::idle_rows_not_zeroed:
      c.shape.total_q = c.shape.q_offsets[c.shape.batch];
      return;
    case FaultId::part_begin_ignored:
      return spoil_parts(c, true);
    case FaultId::part_end_ignored:
      return spoil_parts(c, false);
    case FaultId::wrong_kv_head:
      reverse_heads(c.args.kv.k_stride, c.args.kv.k, p.kv_heads);
      return reverse_heads(c.args.kv.v_stride, c.args.kv.v, p.kv_heads);
    case FaultId::latent_v_stride:
      c.args.kv.v_stride.token = p.v_dim * static_cast<std::int64_t>(dtype_bytes(p.kv.v_type));
      return;
    case FaultId::q_descale_missing:
      c.args.q_descale = 1;
      return;
    case FaultId::sparse_ignored:
      c.args.sparse = {};
      return;
    default:
      return;
  }
}

// out += 0 x (what lies in the slot after the last key), as a kernel does that multiplies a whole tile.
void add_unused_slots(const StepShape& s, const Args& a, const attention::Problem& p) {
  for (std::int32_t i = 0; i < s.batch; ++i) {
    const std::int64_t next = s.kv_lens[i];
    if (next == 0 || next % a.kv.page_size == 0) continue;
    const std::uint32_t page = s.block_table[i * s.table_stride + next / a.kv.page_size];
    if (page == 0 || page == 0xffffffffu) continue;
    const char* v = static_cast<const char*>(a.kv.v) + page * a.kv.v_stride.page +
                    next % a.kv.page_size * a.kv.v_stride.token;
    const float leak = 0.0f * load_value(p.kv.v_type, v);
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(p.q_type));
    for (std::int32_t r = s.q_offsets[i]; r < s.q_offsets[i + 1]; ++r) {
      char* out = static_cast<char*>(a.out) + r * a.out_row_stride * bytes;
      encode(p.q_type, load_value(p.q_type, out) + leak, out);
    }
  }
}

void spoil_lse(FaultId id, const StepShape& s, const Args& a, const attention::Problem& p) {
  if (a.lse == nullptr) return;
  for (std::int64_t i = 0; i < std::int64_t{s.total_q} * p.q_heads; ++i) {
    float& lse = a.lse[i];
    if (!std::isfinite(lse)) continue;
    if (id == FaultId::lse_without_max) lse -= std::trunc(lse);
    if (id == FaultId::lse_with_sink && a.sink != nullptr)
      lse = std::log(std::exp(lse) + std::exp(a.sink[i % p.q_heads]));
  }
}

void flip_last_bits(const StepShape& s, const Args& a, const attention::Problem& p) {
  if (s.batch < 2) return;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(p.q_type));
  for (std::int32_t r = s.q_offsets[0]; r < s.q_offsets[s.batch]; ++r)
    static_cast<char*>(a.out)[r * a.out_row_stride * bytes] ^= 1;  // little endian: the lowest bit
}

class FaultyBackend final : public attention::Attention {
 public:
  FaultyBackend(const Fault& fault, const attention::Problem& problem, std::unique_ptr<Attention> inner)
      : id_(fault.id), problem_(problem), inner_(std::move(inner)) {}

  std::int64_t workspace_bytes(const attention::Limits& limits) const override {
    return inner_->workspace_bytes(limits);
  }

  void plan(const StepShape& shape, attention::PlanBuffer buffer, platform::Stream& stream) override {
    changed_ = {};
    changed_.shape = shape;
    changed_.args.kv.page_size = problem_.page_size;
    // The plan sees the spoiled shape too; what is wrong in the layer's arguments comes with run().
    if (touches_shape()) spoil_inputs(id_, changed_, problem_);
    inner_->plan(changed_.shape, buffer, stream);
  }

  void run(const StepShape& shape, const Args& args, attention::PlanBuffer buffer,
           platform::Stream& stream) override {
    StepShape spoiled = touches_shape() ? changed_.shape : shape;
    changed_.args = args;
    if (!touches_shape()) spoil_inputs(id_, changed_, problem_);
    inner_->run(spoiled, changed_.args, buffer, stream);
    stream.synchronize();
    if (id_ == FaultId::unzeroed_v_tail) add_unused_slots(shape, args, problem_);
    if (id_ == FaultId::lse_without_max || id_ == FaultId::lse_with_sink)
      spoil_lse(id_, shape, args, problem_);
    if (id_ == FaultId::batch_dependent) flip_last_bits(shape, args, problem_);
    if (id_ == FaultId::workspace_overrun) static_cast<char*>(buffer.data)[buffer.bytes] ^= 1;
  }

 private:
  bool touches_shape() const {
    switch (id_) {
      case FaultId::stale_scale:
      case FaultId::v_scale_missing:
      case FaultId::sink_twice:
      case FaultId::sink_missing:
      case FaultId::softcap_missing:
      case FaultId::wrong_kv_head:
      case FaultId::latent_v_stride:
      case FaultId::q_descale_missing:
      case FaultId::sparse_ignored:
        return false;
      default:
        return true;
    }
  }

  FaultId id_;
  attention::Problem problem_;
  std::unique_ptr<Attention> inner_;
  Changed changed_;
};

}  // namespace

std::span<const Fault> faults() { return kFaults; }

const Fault* find_fault(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFaults), std::end(kFaults), [&](const Fault& f) { return f.name == name; });
  return it == std::end(kFaults) ? nullptr : it;
}

std::string fault_list() {
  std::string text;
  for (const Fault& fault : kFaults) text += fmt::format("  {:<24} {}\n", fault.name, fault.description);
  return text;
}

bool can_show(const Fault& fault, const attention::Problem& p) {
  const auto has = [&](std::uint32_t feature) { return (p.features & feature) != 0; };
  const bool paged = p.source == KvSource::paged;
  const bool along_keys =
      p.mask == MaskKind::causal || p.mask == MaskKind::window || p.mask == MaskKind::chunked;
  switch (fault.id) {
    case FaultId::mask_off_by_one:
    case FaultId::kv_len_stale:
      return p.mask != MaskKind::rows;
    case FaultId::window_off_by_one:
      return p.mask == MaskKind::window;
    case FaultId::chunk_border:
      return p.mask == MaskKind::chunked;
    case FaultId::swapped_pages:
    case FaultId::page_id_16_bits:
    case FaultId::unzeroed_v_tail:
    case FaultId::padded_row_reads_page_0:
      return paged;
    case FaultId::stale_scale:
      return p.kv.scale != KvScaleKind::none;
    case FaultId::v_scale_missing:
      return p.kv.scale == KvScaleKind::tensor || p.kv.scale == KvScaleKind::layer_head;
    case FaultId::sink_twice:
    case FaultId::sink_missing:
      return has(attention::kSink);
    case FaultId::lse_with_sink:
      return has(attention::kSink) && has(attention::kLse);
    case FaultId::lse_without_max:
      return has(attention::kLse);
    case FaultId::softcap_missing:
      return has(attention::kSoftcap);
    case FaultId::window_from_slot:
    case FaultId::tree_depth_ignored:
      return has(attention::kTree) && along_keys && p.mask != MaskKind::causal;
    case FaultId::tree_bits_shifted:
      return has(attention::kTree);
    case FaultId::part_begin_ignored:
    case FaultId::part_end_ignored:
      return has(attention::kPart);
    case FaultId::wrong_kv_head:
      return p.kv_heads > 1;
    case FaultId::latent_v_stride:
      return has(attention::kLatent) && p.v_dim < p.qk_dim;
    case FaultId::sparse_ignored:
      return has(attention::kSparse);
    default:
      return true;
  }
}

std::unique_ptr<attention::Attention> with_fault(const Fault& fault, const attention::Problem& problem,
                                                 std::unique_ptr<attention::Attention> inner) {
  return std::make_unique<FaultyBackend>(fault, problem, std::move(inner));
}

void merge_with_fault(const Fault* fault, const attention::MergeArgs& args, platform::Stream& stream) {
  if (fault == nullptr || fault->id != FaultId::merge_weight_wrong) return attention::merge(args, stream);
  // Sums of exponentials taken to be 1 in every part that has a key.
  stream.synchronize();
  attention::MergeArgs wrong = args;
  std::vector<std::vector<float>> lses;
  for (int i = 0; i < args.part_count; ++i) {
    lses.emplace_back(args.parts[i].lse, args.parts[i].lse + args.rows * args.heads);
    for (float& lse : lses.back())
      if (std::isfinite(lse)) lse = 0;
    wrong.parts[i].lse = lses.back().data();
  }
  attention::merge(wrong, stream);
  stream.synchronize();
}

}  // namespace quire::conformance
