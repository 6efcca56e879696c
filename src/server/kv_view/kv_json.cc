#include "server/kv_view/kv_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"

namespace quire::server {
namespace {

using Json = nlohmann::ordered_json;

Json about_engine(const EngineInfo& info) {
  Json json;
  json["architecture"] = info.architecture;
  json["device"] = info.device;
  json["page_size"] = info.page_size;
  json["max_context"] = info.max_context;
  json["max_running"] = info.max_running;
  json["kv_capacity_tokens"] = info.kv_capacity_tokens;
  json["determinism"] = info.determinism;
  Json& backends = json["backends"] = Json::array();
  for (const CallInfo& call : info.calls)
    backends.push_back({{"call", call.call}, {"backend", call.backend}});
  Json& ledger = json["ledger"] = Json::array();
  for (const LedgerLine& line : info.ledger)
    ledger.push_back({{"owner", line.owner},
                      {"bytes", line.bytes},
                      {"kind", line.mapped ? "mapped"
                               : line.host ? "host"
                                           : "private"}});
  return json;
}

Json tree_json(const KvFacts& facts, bool with_list) {
  const std::vector<PrefixNode>& nodes = facts.pages.map().nodes;
  std::int64_t tokens = 0;
  std::int64_t pages = 0;
  std::set<std::uint32_t> spaces;
  for (const PrefixNode& node : nodes) {
    tokens += node.tokens;
    pages += node.pages;
    spaces.insert(node.space);
  }
  Json json = {{"nodes", nodes.size()},
               {"tokens", tokens},
               {"spaces", spaces.size()},
               {"pages", pages},
               {"evicted_pages", facts.stats.pages_evicted},
               {"left_out", nodes.size() - std::min(nodes.size(), kMostNodes)},
               {"list", nullptr}};
  if (!with_list) return json;
  Json& list = json["list"] = Json::array();
  for (std::size_t n = 0; n < std::min(nodes.size(), kMostNodes); ++n) {
    const PrefixNode& node = nodes[n];
    list.push_back({{"id", node.id},
                    {"parent", node.parent},
                    {"space", node.space},
                    {"begin", node.begin},
                    {"tokens", node.tokens},
                    {"pages", node.pages},
                    {"locks", node.locks},
                    {"hits", node.hits},
                    {"children", node.children}});
  }
  return json;
}

Json requests_json(const std::vector<RequestState>& requests) {
  Json list = Json::array();
  for (std::size_t r = 0; r < std::min(requests.size(), kMostRequests); ++r) {
    const RequestState& request = requests[r];
    list.push_back({{"id", request.id},
                    {"state", request.running ? "running" : "waiting"},
                    {"prompt_tokens", request.prompt_tokens},
                    {"output_tokens", request.output_tokens},
                    {"cached_tokens", request.cached_tokens},
                    {"age_s", request.age_s}});
  }
  return list;
}

Json stats_json(const EngineStats& stats) {
  return {{"steps", stats.steps},
          {"replayed_steps", stats.replayed_steps},
          {"prompt_tokens", stats.prompt_tokens},
          {"cached_tokens", stats.cached_tokens},
          {"looked_up_tokens", stats.looked_up_tokens},
          {"output_tokens", stats.output_tokens},
          {"retractions", stats.retractions},
          {"kv_held", stats.kv_held},
          {"kv_used", stats.kv_used},
          {"device_busy_s", stats.device_busy_s},
          {"host_step_s", stats.host_step_s}};
}

Json history_json(std::span<const LoadSample> history) {
  Json list = Json::array();
  for (const LoadSample& sample : history) {
    list.push_back({{"time", sample.time},
                    {"output_tokens", sample.output_tokens},
                    {"prompt_tokens", sample.prompt_tokens},
                    {"cached_tokens", sample.cached_tokens},
                    {"looked_up_tokens", sample.looked_up_tokens},
                    {"running", sample.running},
                    {"waiting", sample.waiting},
                    {"kv_held", sample.kv_held},
                    {"kv_used", sample.kv_used}});
  }
  return list;
}

// The lists of pages are long and plain: written straight into the text.
void write_page(std::size_t id, const PageState& page, std::string& text) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "[{},\"{}\",{},{},{},[", id, kPageUseNames[static_cast<std::size_t>(page.use)],
                 page.references, page.node, page.requests);
  const std::size_t named = std::min<std::size_t>(static_cast<std::size_t>(page.requests), PageState::kNamed);
  for (std::size_t i = 0; i < named; ++i) fmt::format_to(out, "{}{}", i > 0 ? "," : "", page.request[i]);
  text += "]]";
}

void write_group(const KvFacts& facts, std::size_t g, std::uint64_t since, std::string& text) {
  const PageGroup& group = facts.pages.map().groups[g];
  std::array<std::int64_t, kPageUseNames.size()> uses{};
  for (const PageState& page : group.pages) ++uses[static_cast<std::size_t>(page.use)];
  Json use;
  for (std::size_t u = 0; u < uses.size(); ++u) use[kPageUseNames[u]] = uses[u];
  const Json json = {{"name", group.name},
                     {"keep", group.keep},
                     {"width", group.width},
                     {"page_tokens", group.page_tokens},
                     {"bytes_per_page", group.bytes_per_page},
                     {"pages_per_slab", group.pages_per_slab},
                     {"pages", group.pages.size()},
                     {"use", use}};
  text += json_text(json);
  text.back() = ',';
  text += "\"page_list\":[";
  bool first = true;
  for (std::size_t p = 0; p < group.pages.size(); ++p) {
    const bool listed = since == 0 ? group.pages[p].use != PageUse::free : facts.pages.changed(g, p) > since;
    if (!listed) continue;
    if (!first) text += ',';
    first = false;
    write_page(p, group.pages[p], text);
  }
  text += "]}";
}

}  // namespace

std::string kv_json(const KvFacts& facts, std::uint64_t since, std::span<const LoadSample> history) {
  if (!facts.pages.knows(since)) since = 0;
  const PageMap& map = facts.pages.map();
  Json json = {
      {"version", facts.pages.version()}, {"since", since}, {"time", facts.time}, {"model", facts.model}};
  json.update(about_engine(facts.info));
  json["tree"] = tree_json(facts, facts.pages.nodes_changed() > since);
  Json& why = json["why_miss"] = Json::object();
  for (const auto& [reason, requests] : facts.stats.why_miss) why[reason] = requests;
  json["queue"] = {{"running", facts.queue.running},
                   {"waiting", facts.queue.waiting},
                   {"room", facts.queue.room},
                   {"max_running", facts.info.max_running}};
  json["requests"] = requests_json(map.requests);
  json["requests_left_out"] = map.requests.size() - std::min(map.requests.size(), kMostRequests);
  json["stats"] = stats_json(facts.stats);
  if (since == 0) json["history"] = history_json(history);
  std::string text = json_text(json);
  text.back() = ',';
  text += "\"groups\":[";
  for (std::size_t g = 0; g < map.groups.size(); ++g) {
    if (g > 0) text += ',';
    write_group(facts, g, since, text);
  }
  text += "]}";
  return text;
}

}  // namespace quire::server
