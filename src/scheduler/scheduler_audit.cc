// Scheduler::audit(): pool and table (kv/audit.h), tree, and that sequences, slots and lengths agree with
// them.
#include <fmt/core.h>

#include "kv/audit.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {
namespace {

void audit_sequence(const Sequence& sequence, const kv::BlockTable& table,
                    std::vector<std::string>& violations) {
  const std::uint32_t id = sequence.info.sequence.value;
  if (sequence.state == State::waiting) {
    if (sequence.promise.held() || sequence.slot != kPaddingSlot) {
      violations.push_back(
          fmt::format("sequence {} waits and holds slot {} or a promise", id, sequence.slot.value));
    }
    return;
  }
  if (!table.is_open(sequence.slot) || table.sequence(sequence.slot) != sequence.info.sequence) {
    violations.push_back(fmt::format("sequence {} runs, slot {} is not its own", id, sequence.slot.value));
    return;
  }
  for (int g = 0; g < table.groups(); ++g) {
    const GroupId group{static_cast<std::uint32_t>(g)};
    const kv::Allocated allocated = table.allocated(sequence.slot, group);
    // What is planned is what the newest step in flight sees.
    if (sequence.committed.tokens > sequence.planned || sequence.planned > allocated.tokens) {
      violations.push_back(
          fmt::format("sequence {} group {}: committed {} <= visible {} <= allocated {} is false", id, g,
                      sequence.committed.tokens, sequence.planned, allocated.tokens));
    }
    // Steps run in order, so pages go when the newest one is planned; what its next row sees is still there.
    const std::int64_t needed = kv::first_live_entry(table.rule(group), kv::Committed{sequence.planned});
    if (table.live_begin(sequence.slot, group) > needed) {
      violations.push_back(
          fmt::format("sequence {} group {}: entries below {} are released, {} is still seen", id, g,
                      table.live_begin(sequence.slot, group), needed));
    }
  }
}

}  // namespace

std::vector<std::string> Scheduler::audit() const {
  std::vector<std::string> violations = kv::audit(pool_, table_);
  for (std::string& violation : tree_.check()) violations.push_back(std::move(violation));
  std::int32_t held_slots = 0;
  for (const auto& [id, record] : by_id_) {
    audit_sequence(records_[record], table_, violations);
    held_slots += records_[record].state == State::running ? 1 : 0;
  }
  if (held_slots + static_cast<std::int32_t>(free_slots_.size()) != config_.max_running) {
    violations.push_back(fmt::format("{} slots held + {} free are not {}", held_slots, free_slots_.size(),
                                     config_.max_running));
  }
  if (!has_work()) {
    for (std::string& leak : kv::leaks(pool_)) violations.push_back(std::move(leak));
    if (!by_id_.empty()) violations.push_back(fmt::format("{} sequences are left at idle", by_id_.size()));
  }
  return violations;
}

}  // namespace quire::scheduler
