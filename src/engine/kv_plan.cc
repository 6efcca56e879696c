#include "engine/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/ledger.h"
#include "engine/limits.h"
#include "kv/prefix_tree.h"

namespace quire::engine {
namespace {

kv::Keep keep_of(attention::MaskKind mask) {
  switch (mask) {
    case attention::MaskKind::window:
      return kv::Keep::window;
    case attention::MaskKind::chunked:
      return kv::Keep::chunk;
    default:
      return kv::Keep::all;
  }
}

// Pages of `sequences` sequences of `tokens` tokens each, all at their largest.
kv::PageCounts pages_of(const KvPlan& plan, std::int64_t sequences, std::int64_t tokens,
                        std::int64_t step_tokens) {
  kv::PageCounts counts;
  for (std::uint32_t g = 0; g < plan.rules.size(); ++g)
    counts[GroupId{g}] = sequences * kv::most_live_pages(plan.rules[g], tokens, step_tokens);
  return counts;
}

// With what the admission of the last of them asks for besides.
kv::PageCounts pages_with_room(const KvPlan& plan, std::int64_t sequences, std::int64_t tokens,
                               std::int64_t step_tokens) {
  kv::PageCounts counts = pages_of(plan, sequences, tokens, step_tokens);
  for (std::uint32_t g = 0; g < plan.rules.size(); ++g) counts[GroupId{g}] += sequences - 1;
  return counts;
}

// The longest sequence that fits in the slabs alone.
std::int64_t capacity_of(const KvPlan& plan, std::int64_t step_tokens) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::uint32_t g = 0; g < plan.rules.size(); ++g)
    high = std::max(high, plan.slabs.most_pages(GroupId{g}, plan.slab_count) * plan.rules[g].page_tokens);
  const bool bounded = std::any_of(plan.rules.begin(), plan.rules.end(),
                                   [](const kv::GroupRule& rule) { return rule.keep == kv::Keep::all; });
  if (!bounded) return high;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    const bool fits = holds(plan, 1, middle, step_tokens);
    (fits ? low : high) = fits ? middle : middle - 1;
  }
  return low;
}

Status make_layouts(const EngineSpec& spec, PageOrder order, std::int64_t pages_total, KvPlan& plan) {
  plan.layouts.clear();
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    QUIRE_TRY(layout, make_kv_layout(spec.groups[g].shapes, spec.kv_formats[g], spec.page_size(), order,
                                     pages_total));
    plan.layouts.push_back(std::move(layout));
  }
  return {};
}

Status cut(const EngineSpec& spec, std::int64_t arena_bytes, KvPlan& plan) {
  QUIRE_TRY_STATUS(make_layouts(spec, PageOrder::page_first, 0, plan));
  std::vector<std::int64_t> strides;
  for (const KvLayout& layout : plan.layouts) strides.push_back(layout.page_stride());
  QUIRE_TRY(slabs, kv::plan_slabs(strides, arena_bytes));
  plan.slabs = std::move(slabs);
  for (std::size_t g = 0; g < plan.layouts.size(); ++g)
    plan.layouts[g] = plan.layouts[g].padded_to(plan.slabs.page_strides[g]);
  return {};
}

double auto_share(const EngineSpec& spec) {
  return spec.platform == platform::Kind::cpu ? kAutoKvShareCpu : kAutoKvShareGpu;
}

// What the limits can use, in slabs of the present cut.
struct Want {
  std::int64_t all = 0;  // every running sequence at its longest
  std::int64_t one = 0;  // one of them
  std::int64_t auto_most = 0;
  std::int64_t slabs() const { return std::min(all, std::max(one, auto_most)); }
};

Want want_of(const EngineSpec& spec, const KvPlan& plan) {
  const auto slabs = [&](std::int64_t sequences) {
    return plan.slabs.slabs_for(pages_of(plan, sequences, spec.max_context, spec.chunk_tokens));
  };
  const std::int64_t all = slabs(spec.max_running);
  if (spec.platform != platform::Kind::cpu) return {all, slabs(1), all};
  return {all, slabs(1), (kAutoKvBytes + plan.slabs.slab_bytes - 1) / plan.slabs.slab_bytes};
}

std::vector<kv::GroupRule> rules_of(const EngineSpec& spec) {
  std::vector<kv::GroupRule> rules;
  for (const model::KvGroup& group : spec.groups)
    rules.push_back({keep_of(group.mask), group.mask_width, spec.page_size()});
  return rules;
}

// Slabs for `most` bytes of KV memory when the user did not say. Cut twice: the slab size follows the
// arena's.
Status close_auto(const EngineSpec& spec, std::int64_t most, KvPlan& plan) {
  QUIRE_TRY_STATUS(cut(spec, most, plan));
  const std::int64_t bytes = std::min(most, want_of(spec, plan).slabs() * plan.slabs.slab_bytes);
  QUIRE_TRY_STATUS(cut(spec, bytes, plan));
  const Want want = want_of(spec, plan);
  plan.slab_count = std::min(want.slabs(), most / plan.slabs.slab_bytes);
  plan.because = plan.slab_count < want.slabs()
                     ? fmt::format("{:.0f} % of the memory that is left", 100 * auto_share(spec))
                 : plan.slab_count == want.all
                     ? fmt::format("{} sequences of {} tokens", spec.max_running, spec.max_context)
                 : plan.slab_count == want.one
                     ? fmt::format("one sequence of {} tokens", spec.max_context)
                     : fmt::format("auto takes {} at most", bytes_to_string(kAutoKvBytes));
  return {};
}

}  // namespace

Result<KvPlan> plan_kv(const EngineSpec& spec, std::int64_t available) {
  KvPlan plan{.rules = rules_of(spec)};
  const double share = auto_share(spec) * static_cast<double>(std::max<std::int64_t>(available, 0));
  const std::int64_t most =
      spec.kv_memory_bytes > 0 ? spec.kv_memory_bytes : static_cast<std::int64_t>(share);
  if (spec.kv_memory_bytes > 0) {
    QUIRE_TRY_STATUS(cut(spec, most, plan));
    plan.slab_count = most / plan.slabs.slab_bytes;
    plan.because = fmt::format("--kv-memory {}", bytes_to_string(most));
  } else {
    QUIRE_TRY_STATUS(close_auto(spec, most, plan));
  }
  const std::int64_t slab = plan.slabs.slab_bytes;
  const std::int64_t least = plan.slabs.least_slabs();
  if (plan.slab_count < least) {
    const std::string takes = bytes_to_string(least * slab);
    if (spec.kv_memory_bytes > 0)
      return no_resources(
          fmt::format("KV memory of {} is less than one page of {} tokens per KV group takes ({}): use "
                      "--kv-memory {} or more, or a smaller --page-size",
                      bytes_to_string(most), spec.page_size(), takes, least * slab));
    return no_resources(fmt::format(
        "beside the weights and the work memory {} is left for KV, and one page of {} tokens per KV group "
        "takes "
        "{}: use a smaller model or a machine with more memory, or --kv-memory if more memory will be there",
        available > 0 ? bytes_to_string(most)
                      : fmt::format("no memory ({} too little)", bytes_to_string(-available)),
        spec.page_size(), takes));
  }
  plan.bytes = plan.slab_count * slab;
  plan.capacity_tokens = capacity_of(plan, spec.chunk_tokens);
  if (spec.selection.order == PageOrder::layer_first) {
    QUIRE_CHECK(spec.groups.size() == 1, "layer_first with {} groups", spec.groups.size());
    const std::int64_t pages = plan.slab_count * plan.slabs.pages_per_slab[0];
    QUIRE_TRY_STATUS(make_layouts(spec, PageOrder::layer_first, pages, plan));
    // Every plane starts on 64 bytes: K, V and two scale planes per layer at most.
    plan.bytes += 4 * 64 * static_cast<std::int64_t>(plan.layouts[0].layers().size());
  }
  return plan;
}

// The slabs' size follows the memory, so a figure is tried before it is named.
std::int64_t kv_memory_for(EngineSpec spec, std::int64_t tokens, std::int64_t sequences) {
  spec.kv_memory_bytes = 1;
  KvPlan plan{.rules = rules_of(spec)};
  while (true) {
    const Status done = cut(spec, spec.kv_memory_bytes, plan);
    QUIRE_CHECK(done.ok(), "KV memory of {} bytes: {}", spec.kv_memory_bytes, done.error().message);
    const std::int64_t slabs =
        std::max(plan.slabs.least_slabs(),
                 plan.slabs.slabs_for(pages_with_room(plan, sequences, tokens, spec.chunk_tokens)));
    const std::int64_t bytes = slabs * plan.slabs.slab_bytes;
    if (bytes <= spec.kv_memory_bytes) return spec.kv_memory_bytes;
    spec.kv_memory_bytes = bytes;
  }
}

bool holds(const KvPlan& plan, std::int64_t sequences, std::int64_t tokens, std::int64_t step_tokens) {
  return plan.slabs.slabs_for(pages_with_room(plan, sequences, tokens, step_tokens)) <= plan.slab_count;
}

std::int64_t prefix_tree_bytes(const KvPlan& plan) {
  constexpr std::int64_t kPageBytes = 28;  // id, hash, a second reference
  constexpr std::int64_t kTokenBytes = 4;
  std::int64_t bytes = 0;
  std::int64_t tokens = 0;
  for (std::size_t g = 0; g < plan.rules.size(); ++g) {
    const std::int64_t pages = plan.slab_count * plan.slabs.pages_per_slab[g];
    bytes = std::max(bytes, pages * kPageBytes);
    tokens = std::max(tokens, pages * plan.rules[g].page_tokens);
  }
  constexpr std::int64_t kEventBytes = sizeof(kv::TreeEvent) * kv::kMostEvents;
  return bytes + tokens * kTokenBytes + kEventBytes;
}

}  // namespace quire::engine
