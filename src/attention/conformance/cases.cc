#include "attention/conformance/cases.h"

#include <algorithm>

#include <fmt/format.h>

#include "attention/conformance/rng.h"
#include "base/check.h"

namespace quire::conformance {
namespace {

using attention::bit;
using attention::Box;
using attention::DimPair;
using attention::KvSource;
using attention::MaskKind;
using attention::Phase;

enum AxisId : int {
  kPhase,
  kDims,
  kRatio,
  kQType,
  kKvType,
  kScale,
  kPage,
  kOrder,
  kSource,
  kMask,
  kSoftcapAxis,
  kSinkAxis,
  kLseAxis,
  kTreeAxis,
  kPartAxis,
  kSparseAxis,
  kLatentAxis,
  kLengths,
  kPages,
  kLogits,
  kLoose,
  kAxisCount,
};

using Values = std::array<std::uint8_t, kAxisCount>;

struct TypePair {
  DType k;
  DType v;
};

// What each axis of a box can be.
struct Space {
  std::vector<Phase> phases;
  std::vector<DimPair> dims;
  std::vector<int> ratios;
  std::vector<DType> q_types;
  std::vector<TypePair> kv_types;
  std::vector<KvScaleKind> scales;
  std::vector<int> pages;
  std::vector<PageOrder> orders;
  std::vector<KvSource> sources;
  std::vector<MaskKind> masks;
  std::uint32_t features = 0;
  std::uint32_t needs = 0;
};

template <class E>
std::vector<E> bits_of(std::uint32_t bits, E last) {
  std::vector<E> list;
  for (std::uint32_t i = 0; i <= static_cast<std::uint32_t>(last); ++i)
    if (bits & (1u << i)) list.push_back(static_cast<E>(i));
  return list;
}

std::vector<int> page_values(const attention::PageRule& rule) {
  std::vector<int> pages;
  for (int page : {1, 2, 3, 7, 16, 33, 64, 100, 128, 256}) {
    const bool in = page >= rule.min && page <= rule.max;
    const bool set = rule.kind != attention::PageRule::Kind::set || rule.values.contains(page);
    const bool multiple = rule.kind != attention::PageRule::Kind::multiple || page % rule.multiple == 0;
    if (in && set && multiple) pages.push_back(page);
  }
  for (int i = 0; rule.kind == attention::PageRule::Kind::set && i < rule.values.count; ++i)
    if (std::find(pages.begin(), pages.end(), rule.values.values[i]) == pages.end())
      pages.push_back(rule.values.values[i]);
  if (pages.empty()) pages.push_back(rule.min);
  return pages;
}

Space space_of(const Box& box) {
  Space s;
  s.phases = bits_of(box.phases, Phase::extend);
  s.dims.assign(box.dims.values, box.dims.values + box.dims.count);
  if (s.dims.empty())
    s.dims = {{1, 1}, {3, 5}, {16, 16}, {48, 40}, {64, 64}, {80, 80}, {128, 128}, {192, 128}, {576, 512}};
  for (int ratio : {1, 2, 3, 4, 5, 7, 8, 16})
    if (ratio >= box.ratio_min && ratio <= box.ratio_max) s.ratios.push_back(ratio);
  if (s.ratios.empty()) s.ratios.push_back(box.ratio_min);
  s.q_types = bits_of(box.q_types, DType::fp8_e4m3);
  const std::vector<DType> types = bits_of(box.kv.types, DType::fp8_e4m3);
  for (DType type : types) s.kv_types.push_back({type, type});
  for (std::size_t i = 0; box.kv.mixed && i + 1 < types.size(); ++i)
    if (types[i + 1] != DType::fp8_e4m3) s.kv_types.push_back({types[i], types[i + 1]});
  s.scales = bits_of(box.kv.scales, KvScaleKind::token_head);
  s.pages = page_values(box.page);
  s.orders = bits_of(box.orders, PageOrder::layer_first);
  s.sources = bits_of(box.sources, KvSource::dense);
  s.masks = bits_of(box.masks, MaskKind::rows);
  s.features = box.features;
  s.needs = box.needs;
  return s;
}

constexpr std::uint32_t kFeatureOfAxis[] = {attention::kSoftcap, attention::kSink, attention::kLse,
                                            attention::kTree,    attention::kPart, attention::kSparse,
                                            attention::kLatent};

template <class List, class Name>
std::vector<std::string> names_of(const List& list, Name name) {
  std::vector<std::string> names;
  for (const auto& item : list) names.emplace_back(name(item));
  return names;
}

constexpr std::string_view kLengthNames[] = {"1",    "P-1",  "P",      "P+1",         "61",         "125",
                                             "1000", "long", "ragged", "padded rows", "no sequence"};
constexpr std::string_view kPagesNames[] = {"in order", "permuted", "shared", "far"};
constexpr std::string_view kLogitsNames[] = {"plain", "large", "huge"};

std::vector<Axis> axes_of(const Space& s) {
  std::vector<Axis> axes(kAxisCount);
  const auto words = [](auto value) { return std::string(attention::to_string(value)); };
  const auto plain_words = [](auto value) { return std::string(quire::to_string(value)); };
  axes[kPhase] = {"phase", names_of(s.phases, words)};
  axes[kDims] = {"head dims", names_of(s.dims, [](DimPair d) { return fmt::format("{}/{}", d.qk, d.v); })};
  axes[kRatio] = {"ratio", names_of(s.ratios, [](int r) { return fmt::format("{}", r); })};
  axes[kQType] = {"q type", names_of(s.q_types, plain_words)};
  axes[kKvType] = {"kv type", names_of(s.kv_types, [](TypePair t) {
                     return fmt::format("{}/{}", quire::to_string(t.k), quire::to_string(t.v));
                   })};
  axes[kScale] = {"kv scale", names_of(s.scales, plain_words)};
  axes[kPage] = {"page", names_of(s.pages, [](int p) { return fmt::format("{}", p); })};
  axes[kOrder] = {"order", names_of(s.orders, plain_words)};
  axes[kSource] = {"source", names_of(s.sources, words)};
  axes[kMask] = {"mask", names_of(s.masks, words)};
  for (int i = kSoftcapAxis; i <= kLatentAxis; ++i) {
    const std::uint32_t feature = kFeatureOfAxis[i - kSoftcapAxis];
    axes[i] = {attention::features_to_string(feature), {(s.needs & feature) ? "on" : "off"}};
    if ((s.features & ~s.needs) & feature) axes[i].values.emplace_back("on");
  }
  axes[kLengths] = {"lengths", {std::begin(kLengthNames), std::end(kLengthNames)}};
  axes[kPages] = {"pages", {std::begin(kPagesNames), std::end(kPagesNames)}};
  axes[kLogits] = {"logits", {std::begin(kLogitsNames), std::end(kLogitsNames)}};
  axes[kLoose] = {"loose", {"off", "on"}};
  return axes;
}

template <class T>
int index_of(const std::vector<T>& list, T value) {
  const auto it = std::find(list.begin(), list.end(), value);
  return it == list.end() ? -1 : static_cast<int>(it - list.begin());
}

// Settles values that exclude each other, so that what is left is one legal call.
void normalise(const Space& s, Values& v) {
  const int verify = index_of(s.phases, Phase::verify);
  if (v[kTreeAxis] && verify >= 0) v[kPhase] = static_cast<std::uint8_t>(verify);
  if (v[kTreeAxis] && verify < 0) v[kTreeAxis] = 0;
  const DimPair dims = s.dims[v[kDims]];
  const TypePair types = s.kv_types[v[kKvType]];
  if (dims.v > dims.qk || types.k != types.v) v[kLatentAxis] = 0;
  // Scales belong to fp8, and fp8 has scales; the 16 and 32 bit types are stored as they are.
  const int none = index_of(s.scales, KvScaleKind::none);
  const bool fp8 = types.k == DType::fp8_e4m3;
  if (!fp8 && none >= 0) v[kScale] = static_cast<std::uint8_t>(none);
  if (fp8 && v[kScale] == none && s.scales.size() > 1) v[kScale] = none == 0 ? 1 : 0;
  if (s.sources[v[kSource]] == KvSource::dense) {
    v[kOrder] = 0;
    v[kPages] = 0;
  }
}

Case case_of(const Space& s, const Values& v, int box, std::uint64_t seed) {
  Case c;
  attention::Problem& p = c.problem;
  Rng rng(seed);
  p.phase = s.phases[v[kPhase]];
  p.qk_dim = s.dims[v[kDims]].qk;
  p.v_dim = s.dims[v[kDims]].v;
  const int ratio = s.ratios[v[kRatio]];
  p.features = s.needs;
  for (int i = kSoftcapAxis; i <= kLatentAxis; ++i)
    if (v[i]) p.features |= kFeatureOfAxis[i - kSoftcapAxis];
  p.kv_heads = (p.features & attention::kLatent) ? 1 : 1 + rng.below(std::clamp(12 / ratio, 1, 3));
  p.q_heads = p.kv_heads * ratio;
  p.q_type = s.q_types[v[kQType]];
  p.kv.k_type = s.kv_types[v[kKvType]].k;
  p.kv.v_type = s.kv_types[v[kKvType]].v;
  p.kv.scale = s.scales[v[kScale]];
  p.page_size = s.pages[v[kPage]];
  p.order = s.orders[v[kOrder]];
  p.source = s.sources[v[kSource]];
  p.mask = s.masks[v[kMask]];
  c.lengths = static_cast<Lengths>(v[kLengths]);
  c.pages = static_cast<Pages>(v[kPages]);
  c.logits = static_cast<Logits>(v[kLogits]);
  c.loose = v[kLoose] != 0;
  c.seed = seed;
  c.box = box;
  c.values.assign(v.begin(), v.end());
  return c;
}

// Which pairs of values of two axes are still to be met.
class Pairs {
 public:
  explicit Pairs(const std::vector<Axis>& axes) {
    for (int a = 0; a < kAxisCount; ++a) sizes_[a] = static_cast<int>(axes[a].values.size());
    for (int a = 0; a < kAxisCount; ++a)
      for (int b = a + 1; b < kAxisCount; ++b) {
        open_[a][b].assign(static_cast<std::size_t>(sizes_[a] * sizes_[b]), 1);
        left_ += sizes_[a] * sizes_[b];
      }
  }
  int left() const { return left_; }
  int gain(const Values& v) const {
    int gain = 0;
    for (int a = 0; a < kAxisCount; ++a)
      for (int b = a + 1; b < kAxisCount; ++b) gain += open_[a][b][at(a, b, v)];
    return gain;
  }
  int take(const Values& v) {
    const int gained = gain(v);
    for (int a = 0; a < kAxisCount; ++a)
      for (int b = a + 1; b < kAxisCount; ++b) open_[a][b][at(a, b, v)] = 0;
    left_ -= gained;
    return gained;
  }
  // The first open pair, as the two axes and their values. REQUIRES left() > 0.
  std::array<int, 4> first() const {
    for (int a = 0; a < kAxisCount; ++a)
      for (int b = a + 1; b < kAxisCount; ++b)
        for (int i = 0; i < static_cast<int>(open_[a][b].size()); ++i)
          if (open_[a][b][static_cast<std::size_t>(i)]) return {a, i / sizes_[b], b, i % sizes_[b]};
    QUIRE_CHECK(false, "no open pair, {} counted", left_);
    return {};
  }
  void give_up(const std::array<int, 4>& pair) {
    open_[pair[0]][pair[2]][static_cast<std::size_t>(pair[1] * sizes_[pair[2]] + pair[3])] = 0;
    --left_;
  }
  int size(int axis) const { return sizes_[axis]; }

 private:
  std::size_t at(int a, int b, const Values& v) const {
    return static_cast<std::size_t>(v[a] * sizes_[b] + v[b]);
  }
  std::array<int, kAxisCount> sizes_{};
  std::array<std::array<std::vector<char>, kAxisCount>, kAxisCount> open_;
  int left_ = 0;
};

Values random_values(const Pairs& pairs, Rng& rng) {
  Values v{};
  for (int a = 0; a < kAxisCount; ++a) v[a] = static_cast<std::uint8_t>(rng.below(pairs.size(a)));
  return v;
}

}  // namespace

std::string name_of(const Case& c) {
  const attention::Problem& p = c.problem;
  return fmt::format(
      "{} {}/{} heads {}/{} q {} kv {} {} {}{} features [{}] lengths {} pages {} logits {}{} seed {:#x}",
      attention::to_string(p.phase), p.qk_dim, p.v_dim, p.q_heads, p.kv_heads, quire::to_string(p.q_type),
      quire::to_string(p.kv), attention::to_string(p.mask), attention::to_string(p.source),
      p.source == KvSource::paged ? fmt::format(" page {} {}", p.page_size, quire::to_string(p.order)) : "",
      attention::features_to_string(p.features), kLengthNames[static_cast<int>(c.lengths)],
      kPagesNames[static_cast<int>(c.pages)], kLogitsNames[static_cast<int>(c.logits)],
      c.loose ? " loose" : "", c.seed);
}

Sweep make_sweep(const attention::Backend& row, int box, std::uint64_t seed, int extra) {
  constexpr int kCandidates = 24;
  const Space space = space_of(row.caps.boxes[static_cast<std::size_t>(box)]);
  Sweep sweep;
  sweep.axes = axes_of(space);
  Pairs pairs(sweep.axes);
  Rng rng(seed + static_cast<std::uint64_t>(box) * 7919);
  while (pairs.left() > 0) {
    const std::array<int, 4> pair = pairs.first();
    Values best{};
    int best_gain = 0;
    for (int i = 0; i < kCandidates; ++i) {
      Values v = random_values(pairs, rng);
      v[pair[0]] = static_cast<std::uint8_t>(pair[1]);
      v[pair[2]] = static_cast<std::uint8_t>(pair[3]);
      normalise(space, v);
      const bool kept = v[pair[0]] == pair[1] && v[pair[2]] == pair[3];
      const int gain = kept ? pairs.gain(v) : 0;
      if (gain > best_gain) best = v, best_gain = gain;
    }
    if (best_gain == 0) {
      pairs.give_up(pair);
      ++sweep.pairs_impossible;
      continue;
    }
    sweep.pairs_covered += pairs.take(best);
    sweep.cases.push_back(case_of(space, best, box, rng.next()));
  }
  for (std::size_t i = sweep.cases.size(); i > 1; --i)
    std::swap(sweep.cases[i - 1], sweep.cases[static_cast<std::size_t>(rng.below(static_cast<int>(i)))]);
  for (int i = 0; i < extra; ++i) {
    Values v = random_values(pairs, rng);
    normalise(space, v);
    sweep.cases.push_back(case_of(space, v, box, rng.next()));
  }
  for (Case& c : sweep.cases) c.longest_query = row.caps.longest_query;
  return sweep;
}

}  // namespace quire::conformance
