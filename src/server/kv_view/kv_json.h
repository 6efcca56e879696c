// The answer of /v1/kv as JSON text. Counts and ids only: no token, no text of a request.
//
//   {"version": n,       equal versions mean equal pages and nodes
//    "since": n,         the lists of pages and nodes tell what changed after this version; 0: all there is
//    "time": unix seconds, "model", "architecture", "device", "page_size", "max_context", "max_running",
//    "kv_capacity_tokens", "determinism", "backends": [{"call", "backend"}],
//    "ledger": [{"owner", "bytes", "kind": "private" | "mapped" | "host"}],
//    "groups": [{"name", "keep": "all" | "window" | "chunk", "width", "page_tokens", "bytes_per_page",
//                "pages_per_slab", "pages": ids, page 0 included, "use": {"free": n, "tree": n, ...},
//                "page_list": [[id, use, references, node, requests, [request, ...]], ...]}],
//    "tree": {"nodes", "tokens", "spaces", "pages", "evicted_pages", "left_out",
//             "list": [{"id", "parent", "space", "begin", "tokens", "pages", "locks", "hits", "children"}]},
//    "why_miss": {"no_prefix": requests, ...},
//    "queue": {"running", "waiting", "room", "max_running"},
//    "requests": [{"id", "state": "running" | "waiting", "prompt_tokens", "output_tokens", "cached_tokens",
//                  "age_s"}], "requests_left_out": n,
//    "stats": {"steps", "output_tokens", ...},
//    "history": [...]}   with since 0: the load of the last minutes
//
// With since 0 a page that is not listed is free. A page's list of requests has at most PageState::kNamed of
// them; "requests" is how many there are. "list" of the tree is null when nothing of it changed.
#pragma once

#include <span>
#include <string>

#include "quire/engine.h"
#include "server/kv_view/load_history.h"
#include "server/kv_view/page_versions.h"

namespace quire::server {

inline constexpr std::size_t kMostNodes = 4096;    // listed in one answer
inline constexpr std::size_t kMostRequests = 512;  // likewise

struct KvFacts {
  std::string_view model;  // as requests name it
  const EngineInfo& info;
  const PageVersions& pages;
  const EngineStats& stats;
  Queue queue;
  double time = 0.0;  // unix seconds
};

std::string kv_json(const KvFacts& facts, std::uint64_t since, std::span<const LoadSample> history);

}  // namespace quire::server
