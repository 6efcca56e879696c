// A KV group: the layers that share one page table because they see the same tokens. Here is what it keeps
// and the page arithmetic that follows; admission, allocation and release all use these functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "kv/lengths.h"

namespace quire::kv {

inline constexpr int kMaxGroups = 8;

// Which keys a group must keep for the row with key index p: [visible_begin(p), p].
enum class Keep : std::uint8_t {
  all,     // every key
  window,  // the last `width` keys, the row's own included
  chunk,   // keys since floor(p / width) * width
};
std::string_view to_string(Keep keep);

struct GroupRule {
  Keep keep = Keep::all;
  std::int32_t width = 0;        // tokens of a window or chunk, >= 1; unused for `all`
  std::int32_t page_tokens = 1;  // P
};

// Pages per group: a need, a promise, a count.
struct PageCounts {
  std::array<std::int64_t, kMaxGroups> of{};
  std::int64_t& operator[](GroupId group) { return of[group.value]; }
  std::int64_t operator[](GroupId group) const { return of[group.value]; }
  friend bool operator==(const PageCounts&, const PageCounts&) = default;
};

// Pages that cover entries [0, tokens).
std::int64_t pages_for(const GroupRule& rule, std::int64_t tokens);

// First key that the row with key index `p` sees.
std::int64_t visible_begin(const GroupRule& rule, std::int64_t p);

// First table entry still needed once `committed` tokens are in: a page goes when its last key lies below
// visible_begin of the row at p = committed.
std::int64_t first_live_entry(const GroupRule& rule, Committed committed);

// Most pages that one sequence of up to `tokens` tokens ever holds at once, when a step adds at most
// `step_tokens` to it: all of them, or window (or chunk) + step + one page.
std::int64_t most_live_pages(const GroupRule& rule, std::int64_t tokens, std::int64_t step_tokens);

}  // namespace quire::kv
