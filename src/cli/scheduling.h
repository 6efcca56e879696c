// Names of the scheduler's and the prefix tree's policies, as commands without a model take them.
#pragma once

#include <string>

#include "base/result.h"
#include "kv/prefix_tree.h"
#include "scheduler/waiting_list.h"

namespace quire::cli {

Result<scheduler::Policy> parse_policy(const std::string& name);     // fcfs, longest_prefix, priority
Result<kv::EvictionPolicy> parse_eviction(const std::string& name);  // lru, lfu, fifo, priority

}  // namespace quire::cli
