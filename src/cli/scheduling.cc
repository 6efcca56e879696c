#include "cli/scheduling.h"

#include <fmt/format.h>

#include <array>

#include "base/nearest.h"

namespace quire::cli {

Result<scheduler::Policy> parse_policy(const std::string& name) {
  constexpr std::array<std::string_view, 3> kNames = {"fcfs", "longest_prefix", "priority"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<scheduler::Policy>(i);
  return bad_input(fmt::format("--schedule {}{}", name, did_you_mean(name, kNames)));
}

Result<kv::EvictionPolicy> parse_eviction(const std::string& name) {
  constexpr std::array<std::string_view, 4> kNames = {"lru", "lfu", "fifo", "priority"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<kv::EvictionPolicy>(i);
  return bad_input(fmt::format("--cache-eviction {}{}", name, did_you_mean(name, kNames)));
}

}  // namespace quire::cli
