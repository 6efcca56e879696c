#include "base/json_extent.h"

#include <algorithm>
#include <array>

namespace quire {

JsonExtent json_extent(std::string_view text) {
  JsonExtent extent;
  std::size_t depth = 0;
  std::array<std::size_t, kMembersDepth + 1> members{};  // of what is open, by its depth
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
    } else if (c == '{' || c == '[') {
      extent.depth = std::max(extent.depth, ++depth);
      if (depth <= kMembersDepth) members[depth] = 0;
      ++extent.values;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++extent.values;
    } else if (c == ':' && depth <= kMembersDepth) {
      extent.members = std::max(extent.members, ++members[depth]);
    }
  }
  return extent;
}

}  // namespace quire
