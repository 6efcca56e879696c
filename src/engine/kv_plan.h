// KvPlan: how the KV arena is cut and how large it is. The last decision of the ledger: everything else has
// its line by then, and the arena gets what the user gave it, or what the limits can use of the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/resolve.h"
#include "kv/group.h"
#include "kv/slabs.h"
#include "tensor/kv_format.h"

namespace quire::engine {

struct KvPlan {
  std::vector<kv::GroupRule> rules;  // per group
  std::vector<KvLayout> layouts;     // per group
  kv::SlabPlan slabs;
  std::int64_t slab_count = 0;  // slab 0 included
  std::int64_t bytes = 0;       // of the arena
  // Longest single sequence that fits alone, in tokens: what one context can have of the arena.
  std::int64_t capacity_tokens = 0;
  std::string because;  // "16 sequences of 8192 tokens", "--kv-memory", ...
};

// `available`: bytes that no other ledger line claims. Fails with the numbers when not even one page per
// group fits.
Result<KvPlan> plan_kv(const EngineSpec& spec, std::int64_t available);

// The --kv-memory with which the arena holds() them: near the least such value.
std::int64_t kv_memory_for(EngineSpec spec, std::int64_t tokens, std::int64_t sequences = 1);

// Whether the arena holds them at once, each at its largest, when a step adds at most `step_tokens` to one,
// and so many pages more that none of them waits for the others: the scheduler admits a sequence only where a
// page for each running one stays free.
bool holds(const KvPlan& plan, std::int64_t sequences, std::int64_t tokens, std::int64_t step_tokens);

// What the prefix tree needs on the host when every page of the arena is in it.
std::int64_t prefix_tree_bytes(const KvPlan& plan);

}  // namespace quire::engine
