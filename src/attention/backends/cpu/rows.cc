#include "attention/backends/cpu/rows.h"

#include <algorithm>
#include <bit>

namespace quire::attention::cpu {
namespace {

KeySpan intersect(KeySpan a, KeySpan b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

KeySpan merge(KeySpan a, KeySpan b) {
  if (a.begin >= a.end) return b;
  if (b.begin >= b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// The interval of a row with key index p, before any cut.
KeySpan interval_of(const StepShape& shape, std::int32_t p, std::int32_t kv_len, std::int64_t step_row) {
  switch (shape.mask) {
    case MaskKind::causal:
      return {0, p + 1};
    case MaskKind::window:
      return {std::max(0, p - shape.mask_width + 1), p + 1};
    case MaskKind::chunked:
      return p < 0 ? KeySpan{} : KeySpan{p / shape.mask_width * shape.mask_width, p + 1};
    case MaskKind::full:
      return {0, kv_len};
    case MaskKind::rows:
      return {shape.row_begin[step_row], shape.row_end[step_row]};
  }
  return {};
}

KeySpan cut_of(const StepShape& shape, std::int32_t sequence) {
  const KeySpan keys{0, shape.kv_lens[sequence]};
  if (shape.part_begin == nullptr) return keys;
  return intersect(keys, {shape.part_begin[sequence], shape.part_end[sequence]});
}

// Bits [begin, end) of a word that stands for keys first .. first + 63.
std::uint64_t span_bits(KeySpan span, std::int32_t first) {
  const std::int64_t begin = std::clamp<std::int64_t>(std::int64_t{span.begin} - first, 0, 64);
  const std::int64_t end = std::clamp<std::int64_t>(std::int64_t{span.end} - first, 0, 64);
  if (begin >= end) return 0;
  const std::uint64_t below_end = end == 64 ? ~0ull : (1ull << end) - 1;
  return below_end & (~0ull << begin);
}

std::uint64_t tree_word(const RowView& view, std::int64_t index) {
  return index >= 0 && index < view.tree_words ? view.tree_bits[index] : 0;
}

// Tree bits as seen from key `first`; offset 0 of the tree is key tree_base.
std::uint64_t tree_bits_at(const RowView& view, std::int32_t first) {
  const std::int64_t offset = std::int64_t{first} - view.tree_base;
  const std::int64_t word = offset >> 6;
  const int shift = static_cast<int>(offset & 63);
  const std::uint64_t low = tree_word(view, word) >> shift;
  return shift == 0 ? low : low | tree_word(view, word + 1) << (64 - shift);
}

}  // namespace

RowView row_view(const StepShape& shape, std::int32_t sequence, std::int32_t row) {
  const std::int32_t first_row = shape.q_offsets[sequence];
  const std::int32_t q_len = shape.q_offsets[sequence + 1] - first_row;
  const std::int32_t kv_len = shape.kv_lens[sequence];
  const std::int64_t step_row = first_row + row;
  RowView view;
  view.cut = cut_of(shape, sequence);
  std::int32_t p = kv_len - q_len + row;
  KeySpan below = view.cut;
  if (shape.tree_bits != nullptr) {
    view.tree_base = shape.tree_base[sequence];
    view.tree_words = shape.tree_words;
    view.tree_bits = shape.tree_bits + step_row * shape.tree_words;
    p = view.tree_base + shape.tree_depth[step_row];
    below.end = std::min(below.end, view.tree_base);
  }
  view.interval = intersect(interval_of(shape, p, kv_len, step_row), below);
  return view;
}

KeySpan hull(const RowView& view) {
  if (view.tree_bits == nullptr) return view.interval;
  KeySpan tree;
  for (std::int32_t w = 0; w < view.tree_words; ++w) {
    const std::uint64_t bits = view.tree_bits[w];
    if (bits == 0) continue;
    const std::int32_t base = view.tree_base + 64 * w;
    tree = merge(tree, {base + std::countr_zero(bits), base + 64 - std::countl_zero(bits)});
  }
  return merge(view.interval, intersect(tree, view.cut));
}

KeySpan hull(const StepShape& shape, std::int32_t sequence, std::int32_t row, std::int32_t rows) {
  KeySpan all;
  if (shape.mask == MaskKind::rows || shape.tree_bits != nullptr) {
    for (std::int32_t r = row; r < row + rows; ++r) all = merge(all, hull(row_view(shape, sequence, r)));
    return all;
  }
  // Without per-row data both ends of the interval move forward with the row.
  const std::int32_t kv_len = shape.kv_lens[sequence];
  const std::int32_t p = kv_len - (shape.q_offsets[sequence + 1] - shape.q_offsets[sequence]) + row;
  all = {interval_of(shape, p, kv_len, 0).begin, interval_of(shape, p + rows - 1, kv_len, 0).end};
  return intersect(all, cut_of(shape, sequence));
}

std::uint64_t tile_mask(const RowView& view, std::int32_t first) {
  std::uint64_t bits = span_bits(view.interval, first);
  if (view.tree_bits != nullptr) bits |= tree_bits_at(view, first) & span_bits(view.cut, first);
  return bits;
}

}  // namespace quire::attention::cpu
