// Makes the data of a case: lengths, keys, queries, masks, trees, parts, sparse lists.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "attention/conformance/inputs.h"
#include "attention/conformance/rng.h"
#include "attention/conformance/values.h"
#include "base/check.h"

namespace quire::conformance {
namespace {

using attention::MaskKind;
using attention::Phase;

struct LengthPair {
  int q_len;
  int kv_len;
};

int boundary_length(const Case& c, Rng& rng) {
  const int page = c.problem.page_size;
  switch (c.lengths) {
    case Lengths::one:
      return 1;
    case Lengths::page_less_one:
      return std::max(1, page - 1);
    case Lengths::page:
      return page;
    case Lengths::page_plus_one:
      return page + 1;
    case Lengths::n61:
      return 61;
    case Lengths::n125:
      return 125;
    case Lengths::n1000:
      return 1000;
    case Lengths::long_one:
      return 2049 + rng.below(64);
    default:
      return rng.between(1, 150);
  }
}

// How many new rows a sequence of kv_len keys gets, within the cost that a case may have.
int query_length(const Case& c, int kv_len, Rng& rng) {
  const attention::Problem& p = c.problem;
  constexpr std::int64_t kCost = 6'000'000;  // rows x heads x keys x dims, about 10 ms of the oracle
  if (p.phase == Phase::decode) return 1;
  const std::int64_t row_cost = std::int64_t{p.q_heads} * (kv_len + 1) * (p.qk_dim + p.v_dim);
  const int affordable = static_cast<int>(std::clamp<std::int64_t>(kCost / row_cost, 2, 40));
  const bool tree = (p.features & attention::kTree) != 0;
  const int verify = tree ? rng.between(1, 24) : rng.between(1, std::clamp(c.longest_query, 1, 8));
  const int wanted = p.phase == Phase::verify ? verify : rng.between(1, 40);
  const int longest =
      p.mask == MaskKind::full ? wanted : std::max(1, kv_len);  // full: q_len may exceed kv_len
  return std::min({wanted, affordable, longest});
}

std::vector<LengthPair> lengths_of(const Case& c, Rng& rng) {
  std::vector<LengthPair> list;
  if (c.lengths == Lengths::none) return list;
  const bool big = c.lengths == Lengths::n1000 || c.lengths == Lengths::long_one;
  const int batch = c.lengths == Lengths::long_one ? 1
                    : big                          ? 2
                    : c.lengths == Lengths::ragged ? 6
                                                   : rng.between(1, 4);
  for (int i = 0; i < batch; ++i) {
    int kv_len = i == 0 || c.lengths == Lengths::ragged ? boundary_length(c, rng) : rng.between(1, 90);
    if (c.pages == Pages::shared && i > 0) kv_len += c.problem.page_size;
    list.push_back({query_length(c, kv_len, rng), kv_len});
  }
  if (c.pages == Pages::shared && list.size() < 2) list.push_back({1, list[0].kv_len + 1});
  if (c.lengths == Lengths::ragged) {
    list[1] = {0, 17};  // nothing new in this step
    list[3] = {0, 0};
    if (c.problem.phase != Phase::decode) list[4] = {1, 1 + rng.below(130)};
  }
  // Rows that pad a bucket: one query, no key, a table row of zeros.
  if (c.lengths == Lengths::padded_rows)
    for (int i = rng.between(1, 3); i > 0; --i) list.push_back({1, 0});
  return list;
}

// A random forest over the last nodes of the sequence; the rows are the newest nodes. Older nodes are the
// rows of earlier draft steps.
void make_tree(Sequence& s, Rng& rng) {
  const int older =
      std::min({s.kv_len - s.q_len, rng.one_in(2) ? 0 : rng.between(1, 20), attention::kMaxTree - s.q_len});
  const int nodes = s.q_len + std::max(0, older);
  s.tree_base = std::max(0, s.kv_len - nodes);
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(nodes));
  std::vector<int> depth(static_cast<std::size_t>(nodes));
  for (int i = 0; i < nodes; ++i) {
    const int parent = i == 0 || rng.one_in(4) ? -1 : rng.below(i);
    const auto at = static_cast<std::size_t>(i);
    bits[at] = (std::uint64_t{1} << i) | (parent < 0 ? 0 : bits[static_cast<std::size_t>(parent)]);
    depth[at] = parent < 0 ? 0 : depth[static_cast<std::size_t>(parent)] + 1;
  }
  s.tree_bits.assign(bits.end() - s.q_len, bits.end());
  s.tree_depth.assign(depth.end() - s.q_len, depth.end());
}

void make_masks(Logical& l, Sequence& s, Rng& rng) {
  s.part_end = s.kv_len;
  if (l.has(attention::kPart) && !rng.one_in(5)) {
    s.part_begin = rng.between(0, s.kv_len);
    s.part_end = rng.between(s.part_begin, s.kv_len + 3);
  }
  if (l.has(attention::kTree)) make_tree(s, rng);
  for (int r = 0; l.problem.mask == MaskKind::rows && r < s.q_len; ++r) {
    const int begin = rng.between(0, s.kv_len);
    s.row_begin.push_back(begin);
    s.row_end.push_back(rng.one_in(6) ? begin : rng.between(begin, s.kv_len));
  }
  for (int r = 0; l.has(attention::kSparse) && r < s.q_len; ++r)
    for (int h = 0; h < l.index_heads; ++h) {
      std::vector<std::int32_t> list;
      for (int key = 0; key < s.kv_len && static_cast<int>(list.size()) < l.sparse_k; ++key)
        if (rng.below(std::max(1, s.kv_len)) < l.sparse_k) list.push_back(key);
      list.resize(static_cast<std::size_t>(l.sparse_k), -1);
      s.sparse.insert(s.sparse.end(), list.begin(), list.end());
    }
}

void fill(std::vector<std::uint8_t>& bytes, DType type, std::int64_t count, float spread, Rng& rng) {
  const std::size_t width = dtype_bytes(type);
  bytes.resize(static_cast<std::size_t>(count) * width);
  for (std::int64_t i = 0; i < count; ++i)
    encode(type, rng.normal() * spread, bytes.data() + static_cast<std::size_t>(i) * width);
}

void make_keys(const Logical& l, Sequence& s, Rng& rng) {
  const attention::Problem& p = l.problem;
  // fp8 has few bits near 1: spread the stored values over its range, the scales bring them back.
  const bool fp8 = p.kv.k_type == DType::fp8_e4m3 || p.kv.v_type == DType::fp8_e4m3;
  const float spread = fp8 && p.kv.scale != KvScaleKind::none ? 60.0f : 1.0f;
  const std::int64_t entries = std::int64_t{s.kv_len} * p.kv_heads;
  fill(s.k, p.kv.k_type, entries * p.qk_dim, spread, rng);
  if (!l.has(attention::kLatent)) fill(s.v, p.kv.v_type, entries * p.v_dim, spread, rng);
  if (p.kv.scale != KvScaleKind::token_head) return;
  for (std::int64_t i = 0; i < entries; ++i) {
    s.k_scale.push_back((0.5f + 0.25f * static_cast<float>(rng.below(8))) / 60.0f);
    s.v_scale.push_back(l.has(attention::kLatent)
                            ? s.k_scale.back()
                            : (0.5f + 0.25f * static_cast<float>(rng.below(8))) / 60.0f);
  }
}

// Copies the first keys of `from`, so that both may lie in the same pages.
void share_keys(const Logical& l, const Sequence& from, Sequence& to, int keys) {
  const auto part = [&](const auto& source, auto& target, std::int64_t row) {
    std::copy(source.begin(), source.begin() + keys * row, target.begin());
  };
  const attention::Problem& p = l.problem;
  part(from.k, to.k, p.kv_heads * p.qk_dim * static_cast<std::int64_t>(dtype_bytes(p.kv.k_type)));
  if (!to.v.empty())
    part(from.v, to.v, p.kv_heads * p.v_dim * static_cast<std::int64_t>(dtype_bytes(p.kv.v_type)));
  if (!to.k_scale.empty()) part(from.k_scale, to.k_scale, p.kv_heads);
  if (!to.v_scale.empty()) part(from.v_scale, to.v_scale, p.kv_heads);
  to.shared_len = keys;
}

void make_call_values(Logical& l, Rng& rng) {
  const attention::Problem& p = l.problem;
  const int page = p.page_size;
  const int widths[] = {1, 2, 5, std::max(1, page - 1), page, page + 1, 17, 40, 64, 129};
  l.mask_width = widths[rng.below(static_cast<int>(std::size(widths)))];
  l.scale = 1.0f / std::sqrt(static_cast<float>(p.qk_dim));
  l.q_descale = l.origin.loose ? 0.75f : 1.0f;
  if (l.has(attention::kSoftcap))
    l.softcap = std::vector<float>{2, 30, 50}[static_cast<std::size_t>(rng.below(3))];
  // Now and then a sink that no key comes near, or that does not count at all.
  for (int h = 0; l.has(attention::kSink) && h < p.q_heads; ++h)
    l.sink.push_back(rng.one_in(8) ? (rng.one_in(2) ? 300.0f : -300.0f) : rng.normal() * 2 + 1);
  const auto scale = [&] { return (0.5f + 0.25f * static_cast<float>(rng.below(8))) / 60.0f; };
  const int scales = p.kv.scale == KvScaleKind::tensor       ? 1
                     : p.kv.scale == KvScaleKind::layer_head ? p.kv_heads
                                                             : 0;
  for (int i = 0; i < scales; ++i) {
    l.k_scale.push_back(scale());
    l.v_scale.push_back(l.has(attention::kLatent) ? l.k_scale.back() : scale());
  }
  if (l.has(attention::kSparse)) {
    l.index_heads = rng.one_in(2) ? 1 : p.kv_heads;
    l.sparse_k = std::vector<int>{1, 8, 40}[static_cast<std::size_t>(rng.below(3))];
  }
  if (l.origin.loose) {
    l.lead_rows = rng.below(3);
    l.tail_rows = 1 + rng.below(3);
  }
}

}  // namespace

int Logical::rows() const {
  int rows = 0;
  for (const Sequence& s : sequences) rows += s.q_len;
  return rows;
}

bool Logical::visible(const Sequence& s, int row, int key) const {
  if (key < 0 || key >= s.kv_len) return false;
  if (has(attention::kPart) && (key < s.part_begin || key >= s.part_end)) return false;
  int p = s.kv_len - s.q_len + row;
  if (has(attention::kTree)) {
    if (key >= s.tree_base)
      return ((s.tree_bits[static_cast<std::size_t>(row)] >> (key - s.tree_base)) & 1) != 0;
    p = s.tree_base + s.tree_depth[static_cast<std::size_t>(row)];
  }
  switch (problem.mask) {
    case MaskKind::causal:
      return key <= p;
    case MaskKind::window:
      return key <= p && p - key < mask_width;
    case MaskKind::chunked:
      return key <= p && key / mask_width == p / mask_width;
    case MaskKind::full:
      return true;
    case MaskKind::rows:
      return key >= s.row_begin[static_cast<std::size_t>(row)] &&
             key < s.row_end[static_cast<std::size_t>(row)];
  }
  return false;
}

Logical make_logical(const Case& c) {
  Rng rng(c.seed);
  Logical l;
  l.origin = c;
  l.problem = c.problem;
  make_call_values(l, rng);
  const float q_spread = c.logits == Logits::plain ? 1.0f : c.logits == Logits::large ? 12.0f : 150.0f;
  for (const LengthPair& pair : lengths_of(c, rng)) {
    Sequence s;
    s.q_len = pair.q_len;
    s.kv_len = pair.kv_len;
    make_masks(l, s, rng);
    make_keys(l, s, rng);
    const std::int64_t count = std::int64_t{s.q_len} * c.problem.q_heads * c.problem.qk_dim;
    for (std::int64_t i = 0; i < count; ++i)
      s.q.push_back(rounded(c.problem.q_type, rng.normal() * q_spread));
    l.sequences.push_back(std::move(s));
  }
  if (c.pages == Pages::shared && c.problem.source == attention::KvSource::paged)
    for (std::size_t i = 1; i < l.sequences.size(); ++i) {
      const int keys =
          std::min(l.sequences[0].kv_len, l.sequences[i].kv_len) / c.problem.page_size * c.problem.page_size;
      if (keys > 0) share_keys(l, l.sequences[0], l.sequences[i], keys);
    }
  return l;
}

Logical take_rows(const Logical& all, int index, int first, int last) {
  Logical part = all;
  const Sequence& from = all.sequences[static_cast<std::size_t>(index)];
  QUIRE_CHECK(first >= 0 && first <= last && last <= from.q_len, "rows {} to {} of {}", first, last,
              from.q_len);
  Sequence s = from;
  s.q_len = last - first;
  s.shared_len = 0;
  const bool whole = s.q_len == from.q_len;
  if (!whole) s.kv_len = std::max(0, from.kv_len - from.q_len + last);
  const auto rows = [&](auto& list) {
    if (from.q_len == 0 || list.empty()) return;
    const auto width = static_cast<std::ptrdiff_t>(list.size()) / from.q_len;
    list.erase(list.begin() + last * width, list.end());
    list.erase(list.begin(), list.begin() + first * width);
  };
  rows(s.q);
  rows(s.row_begin);
  rows(s.row_end);
  rows(s.tree_bits);
  rows(s.tree_depth);
  rows(s.sparse);
  part.sequences.clear();
  part.sequences.push_back(std::move(s));
  part.lead_rows = part.tail_rows = 0;
  return part;
}

}  // namespace quire::conformance
