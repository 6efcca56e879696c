#include "base/json_extent.h"

#include <algorithm>

namespace quire {

JsonExtent json_extent(std::string_view text) {
  JsonExtent extent;
  std::size_t depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
    } else if (c == '{' || c == '[') {
      extent.depth = std::max(extent.depth, ++depth);
      ++extent.values;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++extent.values;
    }
  }
  return extent;
}

}  // namespace quire
