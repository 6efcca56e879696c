// Names of the scheduler's and the prefix tree's policies, as commands without a model take them.
#pragma once

#include <string_view>

#include "base/result.h"
#include "kv/prefix_tree.h"
#include "scheduler/waiting_list.h"

namespace quire::cli {

Result<scheduler::Policy> parse_policy(std::string_view name);     // fcfs, longest_prefix, priority
Result<kv::EvictionPolicy> parse_eviction(std::string_view name);  // lru, lfu, fifo, priority

}  // namespace quire::cli
