#include "attention/caps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

namespace quire::attention {
namespace {

// Facts that a box restricts, in the order in which a clash is named: what the user can change least first.
constexpr Fact kBoxFacts[] = {
    Fact::platform,   Fact::arch,      Fact::phase,    Fact::head_dims,  Fact::head_ratio,
    Fact::q_type,     Fact::kv_format, Fact::kv_scale, Fact::kv_packing, Fact::page_size,
    Fact::page_order, Fact::source,    Fact::mask,     Fact::softcap,    Fact::sink,
    Fact::lse,        Fact::tree,      Fact::part,     Fact::sparse,     Fact::latent,
};
constexpr int kFactCount = static_cast<int>(std::size(kBoxFacts));
static_assert(kFactCount <= 32, "clashes are a 32-bit set");

std::uint32_t feature_of(Fact fact) {
  switch (fact) {
    case Fact::softcap:
      return kSoftcap;
    case Fact::sink:
      return kSink;
    case Fact::lse:
      return kLse;
    case Fact::tree:
      return kTree;
    case Fact::part:
      return kPart;
    case Fact::sparse:
      return kSparse;
    case Fact::latent:
      return kLatent;
    default:
      return 0;
  }
}

bool dims_fit(const DimSet& dims, std::int32_t qk, std::int32_t v) {
  if (qk < 1 || v < 1) return false;
  if (dims.count == 0) return true;
  return std::any_of(dims.values, dims.values + dims.count,
                     [&](const DimPair& d) { return d.qk == qk && d.v == v; });
}

bool page_fits(const PageRule& rule, std::int32_t page) {
  if (page < rule.min || page > rule.max) return false;
  switch (rule.kind) {
    case PageRule::Kind::any:
      return true;
    case PageRule::Kind::set:
      return rule.values.contains(page);
    case PageRule::Kind::multiple:
      return page % rule.multiple == 0;
  }
  return false;
}

bool ratio_fits(const Box& box, const Problem& p) {
  if (p.q_heads < 1 || p.kv_heads < 1 || p.q_heads % p.kv_heads != 0) return false;
  const std::int32_t ratio = p.q_heads / p.kv_heads;
  return ratio >= box.ratio_min && ratio <= box.ratio_max;
}

bool kv_types_fit(const Box& box, const Problem& p) {
  // Rows of several sections and merged tokens need a box that says so; no box can yet.
  if (p.kv.section_count > 1 || p.kv.tokens_per_entry != 1) return false;
  if (p.kv.k_type != p.kv.v_type && !box.kv.mixed) return false;
  return (box.kv.types & bit(p.kv.k_type)) != 0 && (box.kv.types & bit(p.kv.v_type)) != 0;
}

bool fits(const Box& box, const Problem& p, Fact fact) {
  const bool paged = p.source == KvSource::paged;
  switch (fact) {
    case Fact::platform:
      return box.platforms == 0 || (box.platforms & bit(p.platform)) != 0;
    case Fact::arch:
      return p.arch >= box.arch_min && p.arch <= box.arch_max;
    case Fact::phase:
      return (box.phases & bit(p.phase)) != 0;
    case Fact::head_dims:
      return dims_fit(box.dims, p.qk_dim, p.v_dim);
    case Fact::head_ratio:
      return ratio_fits(box, p);
    case Fact::q_type:
      return (box.q_types & bit(p.q_type)) != 0;
    case Fact::kv_format:
      return kv_types_fit(box, p);
    case Fact::kv_scale:
      return (box.kv.scales & bit(p.kv.scale)) != 0;
    case Fact::kv_packing:
      return (box.kv.packings & bit(p.kv.packing)) != 0;
    case Fact::page_size:
      return !paged || page_fits(box.page, p.page_size);
    case Fact::page_order:
      return !paged || (box.orders & bit(p.order)) != 0;
    case Fact::source:
      return (box.sources & bit(p.source)) != 0;
    case Fact::mask:
      return (box.masks & bit(p.mask)) != 0;
    default: {
      const std::uint32_t feature = feature_of(fact);
      return (p.features & feature) == 0 ? (box.needs & feature) == 0 : (box.features & feature) != 0;
    }
  }
}

std::uint32_t clashes_of(const Box& box, const Problem& p) {
  std::uint32_t clashes = 0;
  for (int i = 0; i < kFactCount; ++i)
    if (!fits(box, p, kBoxFacts[i])) clashes |= 1u << i;
  return clashes;
}

// Keeps the order of first appearance and drops repeats.
void add_unique(std::vector<std::string>& list, std::string item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

template <class E>
void add_bits(std::vector<std::string>& list, std::uint32_t bits, E last) {
  for (std::uint32_t i = 0; i <= static_cast<std::uint32_t>(last); ++i)
    if (bits & (1u << i)) add_unique(list, std::string(to_string(static_cast<E>(i))));
}

std::string dims_text(std::int32_t qk, std::int32_t v) {
  return qk == v ? fmt::format("{}", qk) : fmt::format("{}/{}", qk, v);
}

std::string page_rule_text(const PageRule& rule) {
  switch (rule.kind) {
    case PageRule::Kind::any:
      return fmt::format("{} to {}", rule.min, rule.max);
    case PageRule::Kind::multiple:
      return fmt::format("multiples of {} up to {}", rule.multiple, rule.max);
    case PageRule::Kind::set: {
      std::vector<std::string> list;
      for (std::int32_t i = 0; i < rule.values.count; ++i)
        list.push_back(fmt::format("{}", rule.values.values[i]));
      return fmt::format("{}", fmt::join(list, ", "));
    }
  }
  return "none";
}

std::string_view packing_text(KvPacking packing) { return packing == KvPacking::plain ? "plain" : "vnni"; }

// What box takes of one fact, as items of a list.
void add_taken(std::vector<std::string>& list, const Box& box, Fact fact) {
  switch (fact) {
    case Fact::platform:
      for (auto kind : {platform::Kind::cpu, platform::Kind::cuda})
        if (box.platforms == 0 || (box.platforms & bit(kind)))
          add_unique(list, std::string(platform::to_string(kind)));
      break;
    case Fact::arch:
      add_unique(list, box.arch_max < Box().arch_max ? fmt::format("{} to {}", box.arch_min, box.arch_max)
                                                     : fmt::format("{} and above", box.arch_min));
      break;
    case Fact::phase:
      add_bits(list, box.phases, Phase::extend);
      break;
    case Fact::head_dims:
      if (box.dims.count == 0) add_unique(list, "any from 1");
      for (std::int32_t i = 0; i < box.dims.count; ++i)
        add_unique(list, dims_text(box.dims.values[i].qk, box.dims.values[i].v));
      break;
    case Fact::head_ratio:
      add_unique(list, fmt::format("{} to {}", box.ratio_min, box.ratio_max));
      break;
    case Fact::q_type:
      add_bits(list, box.q_types, DType::u64);
      break;
    case Fact::kv_format:
      add_bits(list, box.kv.types, DType::u64);
      break;
    case Fact::kv_scale:
      add_bits(list, box.kv.scales, KvScaleKind::block);
      break;
    case Fact::kv_packing:
      for (auto packing : {KvPacking::plain, KvPacking::vnni})
        if (box.kv.packings & bit(packing)) add_unique(list, std::string(packing_text(packing)));
      break;
    case Fact::page_size:
      add_unique(list, page_rule_text(box.page));
      break;
    case Fact::page_order:
      add_bits(list, box.orders, PageOrder::layer_first);
      break;
    case Fact::source:
      add_bits(list, box.sources, KvSource::dense);
      break;
    case Fact::mask:
      add_bits(list, box.masks, MaskKind::rows);
      break;
    default:
      break;
  }
}

std::string value_text(const Problem& p, Fact fact) {
  switch (fact) {
    case Fact::platform:
      return std::string(platform::to_string(p.platform));
    case Fact::arch:
      return fmt::format("{}", p.arch);
    case Fact::phase:
      return std::string(to_string(p.phase));
    case Fact::head_dims:
      return dims_text(p.qk_dim, p.v_dim);
    case Fact::head_ratio:
      return fmt::format("{} over {} heads", p.q_heads, p.kv_heads);
    case Fact::q_type:
      return std::string(to_string(p.q_type));
    case Fact::kv_format:
      if (p.kv.section_count > 1) return fmt::format("rows of {} sections", p.kv.section_count);
      if (p.kv.tokens_per_entry != 1) return fmt::format("{} tokens per entry", p.kv.tokens_per_entry);
      if (p.kv.k_type == p.kv.v_type) return std::string(to_string(p.kv.k_type));
      return fmt::format("{} keys and {} values", to_string(p.kv.k_type), to_string(p.kv.v_type));
    case Fact::kv_scale:
      return std::string(to_string(p.kv.scale));
    case Fact::kv_packing:
      return std::string(packing_text(p.kv.packing));
    case Fact::page_size:
      return fmt::format("{}", p.page_size);
    case Fact::page_order:
      return std::string(to_string(p.order));
    case Fact::source:
      return std::string(to_string(p.source));
    case Fact::mask:
      return std::string(to_string(p.mask));
    default:
      return "in use";
  }
}

std::string_view fact_words(Fact fact) {
  switch (fact) {
    case Fact::platform:
      return "platform";
    case Fact::arch:
      return "architecture";
    case Fact::phase:
      return "phase";
    case Fact::head_dims:
      return "head dims";
    case Fact::head_ratio:
      return "query heads per KV head";
    case Fact::q_type:
      return "query type";
    case Fact::kv_format:
      return "KV type";
    case Fact::kv_scale:
      return "KV scales";
    case Fact::kv_packing:
      return "KV packing";
    case Fact::page_size:
      return "page size";
    case Fact::page_order:
      return "page order";
    case Fact::source:
      return "KV source";
    case Fact::mask:
      return "mask";
    default:
      return to_string(fact);
  }
}

// "head dims 48" / "a softcap"
std::string call_has(const Problem& p, Fact fact) {
  const std::uint32_t feature = feature_of(fact);
  if (feature != 0) return fmt::format("{}{}", (p.features & feature) == 0 ? "no " : "", to_string(fact));
  return fmt::format("{} {}", fact_words(fact), value_text(p, fact));
}

std::vector<std::string> taken_by(std::span<const Box> boxes, Fact fact, const Problem& p,
                                  std::optional<Fact> given) {
  std::vector<std::string> taken;
  for (const Box& box : boxes)
    if (!given || fits(box, p, *given)) add_taken(taken, box, fact);
  return taken;
}

std::string pages_fix(const Backend& row, const Problem& p, std::optional<Fact> given) {
  const std::vector<std::int32_t> pages = nearest_page_sizes(row, p, given);
  if (pages.empty()) return "";
  std::string text = fmt::format("use --page-size {}", pages[0]);
  if (pages.size() > 1) text += fmt::format(" or {}", pages[1]);
  return text;
}

std::string list_fix(std::string_view option, const std::vector<std::string>& taken) {
  if (taken.empty()) return "";
  return fmt::format("use {} {}", option, fmt::join(taken, " or "));
}

// The nearest legal change that the user can make to one fact; empty: the call itself fixes it.
std::string fix_of(const Backend& row, const Problem& p, Fact fact, std::optional<Fact> given) {
  const auto taken = [&] { return taken_by(row.caps.boxes, fact, p, given); };
  switch (fact) {
    case Fact::platform:
      return list_fix("--device", taken());
    case Fact::page_size:
      return pages_fix(row, p, given);
    case Fact::q_type:
      return list_fix("--dtype", taken());
    case Fact::kv_format:
      return list_fix("--kv-dtype", taken());
    default:
      return "";
  }
}

std::string row_takes(const Backend& row, const Problem& p, Fact fact, std::optional<Fact> given) {
  const std::string with = given ? fmt::format(" with {}", call_has(p, *given)) : "";
  const std::uint32_t feature = feature_of(fact);
  if (feature != 0 && (p.features & feature) == 0)
    return fmt::format("{} needs {}{}", row.name, to_string(fact), with);
  if (feature != 0) return fmt::format("{} cannot do {}{}", row.name, to_string(fact), with);
  const std::vector<std::string> taken = taken_by(row.caps.boxes, fact, p, given);
  if (taken.empty()) return fmt::format("{} takes no {}{}", row.name, fact_words(fact), with);
  return fmt::format("{} takes {} {}{}", row.name, fact_words(fact), fmt::join(taken, ", "), with);
}

Reason reason_for(const Backend& row, const Problem& p, Fact fact, std::optional<Fact> given) {
  Reason reason;
  reason.facts[0] = fact;
  reason.facts[1] = given.value_or(fact);
  reason.text = fmt::format("{}; this call has {}", row_takes(row, p, fact, given), call_has(p, fact));
  reason.fix = fix_of(row, p, fact, given);
  if (reason.fix.empty() && given) reason.fix = fix_of(row, p, *given, fact);
  if (reason.fix.empty()) reason.fix = "use another row: --attention-backend";
  return reason;
}

}  // namespace

std::string_view to_string(Fact fact) {
  static constexpr std::string_view kNames[] = {
      "platform",   "arch",      "phase",      "head_dims", "head_ratio",  "q_type",  "kv_format", "kv_scale",
      "kv_packing", "page_size", "page_order", "source",    "mask",        "softcap", "sink",      "lse",
      "tree",       "part",      "sparse",     "latent",    "determinism", "device",  "pinned"};
  const auto index = static_cast<std::size_t>(fact);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::vector<std::int32_t> nearest_page_sizes(const Backend& row, const Problem& problem,
                                             std::optional<Fact> given) {
  std::vector<std::int32_t> below, above;
  for (std::int32_t page = 1; page <= kMaxPageSize; ++page) {
    const bool taken = std::any_of(row.caps.boxes.begin(), row.caps.boxes.end(), [&](const Box& box) {
      return page_fits(box.page, page) && (!given || fits(box, problem, *given));
    });
    if (taken) (page < problem.page_size ? below : above).push_back(page);
  }
  std::vector<std::int32_t> nearest;
  if (!above.empty()) nearest.push_back(above.front());
  if (!below.empty()) nearest.push_back(below.back());
  std::stable_sort(nearest.begin(), nearest.end(), [&](std::int32_t a, std::int32_t b) {
    return std::abs(a - problem.page_size) < std::abs(b - problem.page_size);
  });
  return nearest;
}

std::optional<Reason> supports(const Backend& row, const Problem& problem) {
  std::vector<std::uint32_t> clashes;  // per box
  for (const Box& box : row.caps.boxes) {
    clashes.push_back(clashes_of(box, problem));
    if (clashes.back() == 0) return std::nullopt;
  }
  if (clashes.empty()) {
    Reason reason;
    reason.text = fmt::format("{} has no boxes: it serves nothing on this machine", row.name);
    reason.fix = "use another row: --attention-backend";
    return reason;
  }
  // One fact that no box takes; else two that no box takes together; else the box that clashes least.
  const std::uint32_t everywhere = std::accumulate(clashes.begin(), clashes.end(), ~0u,
                                                   [](std::uint32_t a, std::uint32_t b) { return a & b; });
  if (everywhere != 0) return reason_for(row, problem, kBoxFacts[std::countr_zero(everywhere)], std::nullopt);
  for (int b = kFactCount - 1; b >= 0; --b)
    for (int a = 0; a < b; ++a) {
      const std::uint32_t pair = (1u << a) | (1u << b);
      if (std::all_of(clashes.begin(), clashes.end(), [&](std::uint32_t c) { return (c & pair) != 0; }))
        return reason_for(row, problem, kBoxFacts[b], kBoxFacts[a]);
    }
  const std::uint32_t least =
      *std::min_element(clashes.begin(), clashes.end(),
                        [](std::uint32_t a, std::uint32_t b) { return std::popcount(a) < std::popcount(b); });
  const int first = std::countr_zero(least);
  const std::uint32_t rest = least & (least - 1);
  const int second = rest ? std::countr_zero(rest) : first;
  return reason_for(row, problem, kBoxFacts[second], kBoxFacts[first]);
}

const Backend* find_backend(std::span<const Backend> table, std::string_view name) {
  const auto it =
      std::find_if(table.begin(), table.end(), [&](const Backend& row) { return row.name == name; });
  return it == table.end() ? nullptr : &*it;
}

}  // namespace quire::attention
