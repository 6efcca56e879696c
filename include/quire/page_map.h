// Who has which page of the KV cache at one moment, for people who look: Engine::page_map() fills it. It
// names counts and ids and never a token: what stands in the pages stays private.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

enum class PageUse : std::uint8_t {
  free,       // may be handed out
  tree,       // only the prefix cache has it
  request,    // only one request has it
  shared,     // the prefix cache and a request, or several requests
  reserved,   // page 0: padded rows write there, it is never handed out
  elsewhere,  // its memory belongs to another group now (groups take and return whole slabs)
};
inline constexpr std::array<const char*, 6> kPageUseNames = {"free",   "tree",     "request",
                                                             "shared", "reserved", "elsewhere"};

struct PageState {
  static constexpr std::size_t kNamed = 4;

  PageUse use = PageUse::free;
  std::int32_t references = 0;  // all of them, copies that read it included
  // Of the prefix cache, whose tokens lie there; 0: none. A request's page that the cache may only copy from
  // (its last one, still being written) has one too.
  std::uint32_t node = 0;
  std::int32_t requests = 0;                       // that hold it
  std::array<std::uint64_t, kNamed> request = {};  // their ids, as many as fit, in no order; 0: none
  friend bool operator==(const PageState&, const PageState&) = default;
};

struct PageGroup {
  std::string name;
  std::string keep;        // all | window | chunk
  std::int32_t width = 0;  // tokens of the window or chunk
  std::int32_t page_tokens = 0;
  std::int64_t bytes_per_page = 0;
  std::int64_t pages_per_slab = 0;
  std::vector<PageState> pages;  // by id, from the reserved page 0 on
};

// A stretch of tokens in the prefix cache.
struct PrefixNode {
  std::uint32_t id = 0;
  std::uint32_t parent = 0;  // 0: the stretch begins a prompt
  std::uint32_t space = 0;   // prefixes are shared inside one only
  std::int32_t begin = 0;    // tokens before it
  std::int32_t tokens = 0;
  std::int64_t pages = 0;  // that are the cache's own, over all groups
  std::int32_t locks = 0;  // requests that use it or something behind it: it is not evicted
  std::uint32_t hits = 0;
  std::uint32_t children = 0;
  friend bool operator==(const PrefixNode&, const PrefixNode&) = default;
};

struct RequestState {
  std::uint64_t id = 0;
  bool running = false;  // else it waits
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t cached_tokens = 0;  // when it was first admitted
  double age_s = 0.0;              // since submit
};

struct PageMap {
  std::int64_t steps = 0;  // of the engine, when it was taken
  std::vector<PageGroup> groups;
  std::vector<PrefixNode> nodes;       // by id
  std::vector<RequestState> requests;  // that wait or run, by id
};

}  // namespace quire
