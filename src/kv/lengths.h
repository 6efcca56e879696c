// The three lengths of a sequence in one KV group, as types that do not mix:
//   Committed  accepted tokens whose KV is valid
//   Visible    keys that the attention of a step sees (bound on the host, exact on the device)
//   Allocated  capacity in tokens: always whole pages
// Always: committed <= visible <= allocated.
#pragma once

#include <compare>
#include <cstdint>

namespace quire::kv {

template <class Tag>
struct Length {
  std::int32_t tokens = 0;
  friend auto operator<=>(const Length&, const Length&) = default;
};

using Committed = Length<struct CommittedTag>;
using Visible = Length<struct VisibleTag>;
using Allocated = Length<struct AllocatedTag>;

}  // namespace quire::kv
