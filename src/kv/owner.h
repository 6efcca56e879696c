// Who holds a page. Every reference count of the pool has an owner, so a leak is a name, not a number.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace quire::kv {

enum class OwnerKind : std::uint8_t {
  none,       // free page
  request,    // id: SequenceId
  tree,       // id: a namespace of the prefix tree
  transfer,   // id: a copy between tiers or machines
  draft,      // id: SequenceId whose draft tokens lie there
  in_flight,  // id: step that still reads it on another stream
};

struct Owner {
  OwnerKind kind = OwnerKind::none;
  std::uint32_t id = 0;
  friend auto operator<=>(const Owner&, const Owner&) = default;
};
std::string to_string(Owner owner);  // "request 17"

}  // namespace quire::kv
