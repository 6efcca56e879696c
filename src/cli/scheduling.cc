#include "cli/scheduling.h"

#include <fmt/format.h>

#include "base/nearest.h"

namespace quire::cli {

Result<scheduler::Policy> parse_policy(std::string_view name) {
  constexpr auto kNames = scheduler::kPolicyNames;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<scheduler::Policy>(i);
  return bad_input(fmt::format("--schedule {}{}", name, did_you_mean(name, kNames)));
}

Result<kv::EvictionPolicy> parse_eviction(std::string_view name) {
  constexpr auto kNames = kv::kEvictionNames;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<kv::EvictionPolicy>(i);
  return bad_input(fmt::format("--cache-eviction {}{}", name, did_you_mean(name, kNames)));
}

}  // namespace quire::cli
