// What people may know of a running engine: counts, events of the cache, and who has which page. Nothing here
// is on the step's path.
#include <algorithm>

#include "engine/engine_impl.h"
#include "kv/miss.h"

namespace quire::engine {
namespace {

GroupId group_id(std::size_t index) { return GroupId{static_cast<std::uint32_t>(index)}; }

// Everything but the node, from the references.
PageState page_state(const kv::PagePool& pool, GroupId group, PageId page) {
  PageState state;
  if (page == kPaddingPage) {
    state.use = PageUse::reserved;
    return state;
  }
  if (pool.is_elsewhere(group, page)) {
    state.use = PageUse::elsewhere;
    return state;
  }
  bool in_tree = false;
  std::uint32_t reader = 0;
  pool.owners(group, page, [&](kv::Owner owner) {
    ++state.references;
    if (owner.kind == kv::OwnerKind::tree) in_tree = true;
    if (owner.kind == kv::OwnerKind::transfer) reader = owner.id;
    if (owner.kind != kv::OwnerKind::request && owner.kind != kv::OwnerKind::draft) return;
    const auto known = state.request.begin() + std::min<int>(state.requests, PageState::kNamed);
    if (std::find(state.request.begin(), known, owner.id) != known) return;  // its draft lies there too
    if (known != state.request.end()) *known = owner.id;
    ++state.requests;
  });
  if (state.references == 0) return state;
  // The cache has let go of it, and only the copy of a request still reads it.
  if (!in_tree && state.requests == 0 && reader != 0) {
    state.request[0] = reader;
    state.requests = 1;
  }
  state.use = in_tree && state.requests == 0    ? PageUse::tree
              : !in_tree && state.requests == 1 ? PageUse::request
                                                : PageUse::shared;
  return state;
}

PrefixNode prefix_node(const kv::NodeReport& node) {
  return {.id = node.index,
          .parent = node.parent,
          .space = node.space.value,
          .begin = node.begin,
          .tokens = node.tokens,
          .pages = node.pages,
          .locks = node.locks,
          .hits = node.hits,
          .children = node.children};
}

}  // namespace

void EngineImpl::page_map(PageMap& map) const {
  map.steps = stats_.steps;
  map.groups.resize(static_cast<std::size_t>(pool_->groups()));
  for (std::size_t g = 0; g < map.groups.size(); ++g) {
    const kv::GroupConfig& config = pool_->group(group_id(g));
    PageGroup& group = map.groups[g];
    group.name = config.name;
    group.keep = kv::to_string(config.rule.keep);
    group.width = config.rule.width;
    group.page_tokens = config.rule.page_tokens;
    group.bytes_per_page = pool_->plan().page_strides[g];
    group.pages_per_slab = pool_->plan().pages_per_slab[g];
    group.pages.resize(static_cast<std::size_t>(pool_->page_ids(group_id(g))));
    for (std::size_t p = 0; p < group.pages.size(); ++p)
      group.pages[p] = page_state(*pool_, group_id(g), PageId{static_cast<std::uint32_t>(p)});
  }
  map.nodes.clear();
  scheduler_->tree().each_node([&](const kv::NodeReport& node) { map.nodes.push_back(prefix_node(node)); },
                               [&](std::uint32_t node, GroupId group, PageId page) {
                                 map.groups[group.value].pages[page.value].node = node;
                               });
  map.requests.clear();
  const Clock::time_point now = Clock::now();
  requests_.each([&](SequenceId id, const Live& live) {
    map.requests.push_back({.id = id.value,
                            .running = scheduler_->is_running(id),
                            .prompt_tokens = live.prompt_tokens,
                            .output_tokens = live.completion_tokens(),
                            .cached_tokens = live.cached_tokens,
                            .age_s = seconds(now - live.submitted)});
  });
  std::sort(map.requests.begin(), map.requests.end(),
            [](const RequestState& a, const RequestState& b) { return a.id < b.id; });
}

KvEvents EngineImpl::kv_events(std::uint64_t since) const {
  std::vector<kv::TreeEvent> events;
  KvEvents result;
  result.first = scheduler_->tree().events(since, events);
  result.next = result.first + events.size();
  result.events.reserve(events.size());
  for (const kv::TreeEvent& event : events)
    result.events.push_back({static_cast<KvEvent::Kind>(event.kind), event.hash, event.before});
  return result;
}

EngineStats EngineImpl::stats() const {
  EngineStats stats = stats_;
  stats.retractions = scheduler_->retractions();
  const kv::TreeStats cache = scheduler_->tree().stats();
  stats.pages_evicted = cache.evicted_pages;
  double used = 0.0;
  double evictable = 0.0;
  for (std::size_t g = 0; g < static_cast<std::size_t>(pool_->groups()); ++g) {
    const std::int64_t in_use = pool_->in_use(group_id(g));
    const auto page_bytes = static_cast<double>(pool_->plan().page_strides[g]);
    stats.pages_in_use.push_back(in_use);
    stats.pages_peak.push_back(pool_->peak(group_id(g)));
    stats.pages_cached.push_back(cache.pages.of[g]);
    stats.pages_most.push_back(pool_->plan().most_pages(group_id(g), pool_->slabs()));
    used += static_cast<double>(in_use) * page_bytes;
    evictable += static_cast<double>(cache.evictable.of[g]) * page_bytes;
  }
  const double all = static_cast<double>(pool_->slabs() * pool_->plan().slab_bytes);
  stats.kv_used = used / all;
  stats.kv_held = (used - evictable) / all;
  for (int code = 0; code < kv::kMissCodes; ++code)
    stats.why_miss.emplace_back(kv::to_string(static_cast<kv::Miss>(code)),
                                why_miss_[static_cast<std::size_t>(code)]);
  stats.device_busy_s = static_cast<double>(parts_->stream->busy_ns()) * 1e-9;
  if (parts_->observer != nullptr) parts_->observer->report(stats.host_step_s + waited_s_, stats);
  return stats;
}

}  // namespace quire::engine
