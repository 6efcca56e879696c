// Sequence: what the scheduler knows of one request. Internal to scheduler/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "kv/lengths.h"
#include "kv/page_pool.h"
#include "kv/prefix_tree.h"
#include "scheduler/request.h"

namespace quire::scheduler {

enum class State : std::uint8_t {
  waiting,  // no slot, no pages; new or retracted
  running,  // has a slot and pages
};

struct Sequence {
  RequestInfo info;
  std::uint64_t arrival = 0;  // order of submission; retraction keeps it
  std::int64_t rank = 0;      // higher runs first; equal ranks by arrival
  State state = State::waiting;
  bool ended = false;          // nothing more is wanted of it; kept only while steps in flight use it
  bool admitted = false;       // it has run
  std::int32_t in_flight = 0;  // rows in plans that are not committed
  kv::NamespaceId space;

  // Outputs: known, and counting those of steps in flight.
  std::int32_t generated = 0;
  std::int32_t planned_outputs = 0;
  std::int32_t scored = 0;  // scoring: positions [0, scored) are known

  // While waiting: another sequence that is computing a prefix of this one.
  std::uint32_t holder = 0;  // its record
  SequenceId holder_id;      // 0: none
  std::int32_t held_until = 0;
  kv::Probe probe;  // Policy::longest_prefix: where the last look into the tree ended

  // While running.
  SlotId slot;
  bool fresh_slot = false;     // no row yet in this slot
  std::int32_t literals = 0;   // tokens known on the host when it got its slot: prompt and earlier output
  std::int32_t planned = 0;    // tokens in the cache, counting steps in flight
  std::int32_t hit = 0;        // of these, found in the cache at admission
  std::int32_t published = 0;  // of these, in the prefix tree
  kv::Committed committed;     // of these, known to be done
  kv::Reservation promise;
  kv::Lease lease;

  kv::Owner owner() const { return {kv::OwnerKind::request, info.sequence.value}; }
  bool extending() const { return planned < literals; }
  // Tokens whose KV it can ever need: the last output is never written.
  std::int32_t most_kv_tokens() const {
    return info.answer ? info.prompt_tokens + info.max_new_tokens - 1 : info.prompt_tokens;
  }
  // What its next token may be depends on one that is still on its way.
  bool awaits_token() const { return info.guided && planned_outputs > generated; }
  // Its prompt is in the cache and a further output is wanted, now.
  bool decoding() const {
    return info.answer && !extending() && planned_outputs < info.max_new_tokens && !awaits_token();
  }
  // Tokens in the cache whose ids the host knows.
  std::int32_t known() const { return std::max(committed.tokens, std::min(planned, literals)); }
  std::span<const std::int32_t> tokens(std::int32_t count) const {
    return {info.tokens, info.tokens == nullptr ? 0 : static_cast<std::size_t>(count)};
  }
};

}  // namespace quire::scheduler
