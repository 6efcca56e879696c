// How deep and how large a JSON text is, before anything is built from it: bounds a parser's work.
#pragma once

#include <cstddef>
#include <string_view>

namespace quire {

inline constexpr std::size_t kMembersDepth = 64;

struct JsonExtent {
  std::size_t depth = 0;    // of brackets, outside of strings
  std::size_t values = 1;   // keys are none
  std::size_t members = 0;  // of the object that has most, down to kMembersDepth
};

// Of a text that is no JSON all are upper bounds for what a parser meets before it stops.
JsonExtent json_extent(std::string_view text);

}  // namespace quire
