#include "kv/miss.h"

#include <fmt/core.h>

namespace quire::kv {

std::string_view to_string(Miss miss) {
  switch (miss) {
    case Miss::none:
      return "none";
    case Miss::off:
      return "off";
    case Miss::no_prefix:
      return "no_prefix";
    case Miss::evicted:
      return "evicted";
    case Miss::other_namespace:
      return "other_namespace";
    case Miss::window_gone:
      return "window_gone";
    case Miss::below_copy_limit:
      return "below_copy_limit";
  }
  return "unknown";
}

std::string_view to_string(Pressure pressure) {
  switch (pressure) {
    case Pressure::admission:
      return "admission";
    case Pressure::growth:
      return "growth";
    case Pressure::clearing:
      return "clearing";
  }
  return "unknown";
}

std::string to_string(const MissReport& report) {
  if (report.why != Miss::evicted) return std::string(to_string(report.why));
  return fmt::format("evicted at {} for {}", report.evicted_at, to_string(report.pressure));
}

}  // namespace quire::kv
