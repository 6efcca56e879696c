// The bits that a determinism level promises.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "attention/conformance/judge.h"
#include "attention/conformance/rng.h"

namespace quire::conformance {
namespace {

using attention::Determinism;
using attention::MaskKind;
using attention::Phase;

int row_of(const Logical& l, int index) {
  int row = 0;
  for (int i = 0; i < index; ++i) row += l.sequences[static_cast<std::size_t>(i)].q_len;
  return row;
}

bool same_bits(const Placed& a, int row_a, const Placed& b, int row_b, int heads, bool lse) {
  for (int h = 0; h < heads; ++h) {
    const auto x = a.out_bits(row_a, h);
    const auto y = b.out_bits(row_b, h);
    if (std::memcmp(x.data(), y.data(), x.size()) != 0) return false;
    const float lse_a = lse ? a.lse(row_a, h) : 0;
    const float lse_b = lse ? b.lse(row_b, h) : 0;
    if (std::memcmp(&lse_a, &lse_b, sizeof(float)) != 0) return false;
  }
  return true;
}

Finding broken(std::string what) { return Finding{std::move(what), {}}; }

// A later key changes nothing for an earlier row, so rows may be run on their own.
bool rows_stand_alone(const Logical& l) {
  const MaskKind mask = l.problem.mask;
  return mask != MaskKind::full && mask != MaskKind::rows && !l.has(attention::kTree);
}

}  // namespace

// `part` holds rows of sequence `index` from `first` on: run it and compare with the whole's bits.
Finding Judge::same_rows(const Logical& whole, Placed& base, Logical part, int index, int first,
                         std::string_view what) {
  if (supports(row_, part.problem)) return {};
  Placement placement = placement_of(whole.origin);
  placement.seed += 17;
  if (placement.pages == Pages::shared) placement.pages = Pages::permuted;
  Placed placed(part, placement);
  if (std::string error = run(placed, 0, How::eager); !error.empty())
    return broken(fmt::format("{}: {}", what, error));
  const int start = row_of(whole, index) + first;
  for (int r = 0; r < part.rows(); ++r)
    if (!same_bits(base, start + r, placed, r, whole.problem.q_heads, whole.has(attention::kLse)))
      return broken(fmt::format("row {} of sequence {} has other bits {}", first + r, index, what));
  return {};
}

Finding Judge::split_rows(const Logical& l, Placed& base, int index) {
  const int q_len = l.sequences[static_cast<std::size_t>(index)].q_len;
  const auto part = [&](int first, int last, Phase phase) {
    Logical rows = take_rows(l, index, first, last);
    rows.problem.phase = phase;
    return rows;
  };
  Rng rng(l.origin.seed + static_cast<std::uint64_t>(index));
  Finding finding;
  for (int i = 0; i < std::min(2, q_len); ++i) {
    const int row = rng.below(q_len);
    finding.join(same_rows(l, base, part(row, row + 1, Phase::decode), index, row, "when decoded alone"));
  }
  if (q_len < 2) return finding;
  const int cut = rng.between(1, q_len - 1);
  finding.join(same_rows(l, base, part(0, cut, Phase::extend), index, 0, "in an earlier chunk"));
  finding.join(same_rows(l, base, part(cut, q_len, Phase::extend), index, cut, "in a later chunk"));
  const int last = std::min(q_len, cut + row_.caps.longest_query);
  finding.join(same_rows(l, base, part(cut, last, Phase::verify), index, cut, "when verified"));
  return finding;
}

Finding Judge::other_pages(const Logical& l, Placed& base) {
  Rng rng(l.origin.seed + 5);
  Placement placement = placement_of(l.origin);
  placement.pages = placement.pages == Pages::far ? Pages::permuted : Pages::in_order;
  placement.seed += 29;
  for (int tries = 0; tries < 8; ++tries) {
    constexpr int kSizes[] = {1, 3, 16, 32, 64, 128, 256};
    attention::Problem problem = l.problem;
    problem.page_size = kSizes[rng.below(static_cast<int>(std::size(kSizes)))];
    problem.order = rng.one_in(2) ? PageOrder::page_first : PageOrder::layer_first;
    if (problem.page_size == l.problem.page_size || supports(row_, problem)) continue;
    placement.page_size = problem.page_size;
    placement.order = problem.order;
    Logical moved = l;
    // Shared keys stay shared as far as whole pages of the new size go.
    moved.problem = problem;
    Placed placed(moved, placement);
    if (std::string error = run(placed, 0, How::eager); !error.empty())
      return broken(fmt::format("page size {}: {}", problem.page_size, error));
    for (int r = 0; r < l.rows(); ++r)
      if (!same_bits(base, r, placed, r, l.problem.q_heads, l.has(attention::kLse)))
        return broken(fmt::format("row {} has other bits at page size {} {}", r, problem.page_size,
                                  quire::to_string(problem.order)));
    return {};
  }
  return {};
}

Finding Judge::schedule(const Logical& l, Placed& base) {
  Finding finding;
  if (l.problem.source == attention::KvSource::paged) finding.join(other_pages(l, base));
  for (int place = 1; place < static_cast<int>(machine_.places.size()); ++place) {
    Placed placed(l, placement_of(l.origin));
    if (std::string error = run(placed, place, How::eager); !error.empty()) return broken(error);
    for (int r = 0; r < l.rows(); ++r)
      if (!same_bits(base, r, placed, r, l.problem.q_heads, l.has(attention::kLse)))
        return broken(fmt::format("row {} has other bits with {} threads", r,
                                  machine_.places[static_cast<std::size_t>(place)].threads));
  }
  const int sequences = std::min<int>(2, static_cast<int>(l.sequences.size()));
  for (int i = 0; rows_stand_alone(l) && i < sequences; ++i) finding.join(split_rows(l, base, i));
  return finding;
}

Finding Judge::invariance(const Logical& l) {
  const Determinism level = row_.caps.determinism;
  if (level == Determinism::none || l.sequences.empty()) return {};
  Placed base(l, placement_of(l.origin));
  if (std::string error = run(base, 0, How::eager); !error.empty()) return broken(error);
  Finding finding;
  const bool capture = row_.caps.capture != attention::Capture::no && fault_ == nullptr;
  Placed again(l, placement_of(l.origin));
  if (std::string error = run(again, 0, capture ? How::captured : How::eager); !error.empty())
    return broken(error);
  for (int r = 0; r < l.rows(); ++r)
    if (!same_bits(base, r, again, r, l.problem.q_heads, l.has(attention::kLse)))
      return broken(
          fmt::format("row {} has other bits {}", r, capture ? "when replayed" : "the second time"));
  if (level < Determinism::batch_invariant) return finding;
  for (int i = 0; i < static_cast<int>(l.sequences.size()) && i < 3; ++i) {
    const int q_len = l.sequences[static_cast<std::size_t>(i)].q_len;
    finding.join(same_rows(l, base, take_rows(l, i, 0, q_len), i, 0, "when alone in its batch"));
  }
  if (level == Determinism::schedule_invariant) finding.join(schedule(l, base));
  return finding;
}

}  // namespace quire::conformance
