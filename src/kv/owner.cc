#include "kv/owner.h"

#include <fmt/core.h>

namespace quire::kv {

std::string to_string(Owner owner) {
  switch (owner.kind) {
    case OwnerKind::none:
      return "nobody";
    case OwnerKind::request:
      return fmt::format("request {}", owner.id);
    case OwnerKind::tree:
      return fmt::format("tree namespace {}", owner.id);
    case OwnerKind::transfer:
      return fmt::format("transfer {}", owner.id);
    case OwnerKind::draft:
      return fmt::format("draft of {}", owner.id);
    case OwnerKind::in_flight:
      return fmt::format("step {} in flight", owner.id);
  }
  return "unknown";
}

}  // namespace quire::kv
