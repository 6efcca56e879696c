// Why the next token of a prompt did not come from the prefix tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire::kv {

enum class Miss : std::uint8_t {
  none,              // all that may hit did
  off,               // the tree is off, or the request has no tokens that it could be known by
  no_prefix,         // nothing like it was ever seen (or it was forgotten long ago)
  evicted,           // half or more of the next page was there: MissReport says when it went and what for
  other_namespace,   // another model version, adapter, salt or media has so much of the first page
  window_gone,       // tokens are known, but a window or chunk group has lost the keys that the next row sees
  below_copy_limit,  // so few tokens of a page that copying them does not pay
};
std::string_view to_string(Miss miss);

// What pages were evicted for.
enum class Pressure : std::uint8_t {
  admission,  // a prompt needed pages
  growth,     // a running sequence needed pages
  clearing,   // clear()
};
std::string_view to_string(Pressure pressure);

struct MissReport {
  Miss why = Miss::none;
  Pressure pressure = Pressure::admission;  // of `evicted`
  std::uint64_t evicted_at = 0;             // of `evicted`: the tree's clock then
};
std::string to_string(const MissReport& report);  // "evicted at 17 for admission"

inline constexpr int kMissCodes = 7;

}  // namespace quire::kv
