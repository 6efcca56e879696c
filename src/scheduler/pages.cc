// The scheduler's dealings with pages: cover a length, retract, give back.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {
namespace {

GroupId group_id(int index) { return GroupId{static_cast<std::uint32_t>(index)}; }

kv::Owner owner_of(const Sequence& sequence) {
  return kv::Owner{kv::OwnerKind::request, sequence.info.sequence.value};
}

}  // namespace

kv::PageCounts Scheduler::most_pages(std::int32_t kv_tokens) const {
  kv::PageCounts counts;
  for (int g = 0; g < table_.groups(); ++g) {
    counts[group_id(g)] = kv::most_live_pages(table_.rule(group_id(g)), kv_tokens, config_.chunk_tokens);
  }
  return counts;
}

// Makes the sequence's rows reach `end` tokens and drops what windows have left behind. False, and no page
// taken, when the pool has none to give.
bool Scheduler::cover(Sequence& sequence, std::int32_t end) {
  kv::PageCounts missing;
  bool grow = false;
  for (int g = 0; g < table_.groups(); ++g) {
    const GroupId group = group_id(g);
    // The rows before this one always succeed (they are literals, or one decoded token), so what the row
    // planned now does not see is dead, though steps in flight still read it: the stream orders them first.
    const std::int64_t live = kv::first_live_entry(table_.rule(group), kv::Committed{sequence.planned});
    kv::PageCounts released;
    table_.release_below(sequence.slot, group, live, [&](PageId page) {
      pool_.give(group, page, owner_of(sequence));
      ++released[group];
    });
    // While the prompt is in progress, the promise and the held pages stay at what admission asked for. The
    // pages are free since a moment, so this cannot fail.
    if (released[group] > 0 && sequence.extending()) {
      QUIRE_CHECK(sequence.promise.grow(released), "{} pages of group {}", released[group], g);
    }
    const std::int64_t needed = kv::pages_for(table_.rule(group), end) -
                                static_cast<std::int64_t>(table_.row(sequence.slot, group).size());
    missing[group] = std::max<std::int64_t>(0, needed - sequence.promise.left(group));
    grow = grow || missing[group] > 0;
  }
  if (grow && !sequence.promise.grow(missing)) return false;
  for (int g = 0; g < table_.groups(); ++g) {
    const GroupId group = group_id(g);
    while (table_.allocated(sequence.slot, group).tokens < end) {
      table_.append(sequence.slot, group, sequence.promise.take(group, table_.last(sequence.slot, group)));
    }
  }
  return true;
}

// Covers `end`, at the cost of younger sequences if it must be. False when this sequence gets no row now: it
// is the youngest and was retracted itself, or pages of an ended sequence come back soon.
bool Scheduler::cover_or_retract(InFlight& step, std::uint32_t record, std::int32_t end) {
  while (!cover(records_[record], end)) {
    if (ending_ > 0) {
      out_of_pages_ = true;
      return false;
    }
    const std::uint32_t victim = running_.back();
    retract(step, victim);
    if (victim == record) return false;
  }
  return true;
}

void Scheduler::retract(InFlight& step, std::uint32_t record) {
  Sequence& sequence = records_[record];
  QUIRE_CHECK(running_.back() == record, "sequence {}", sequence.info.sequence.value);
  running_.pop_back();
  give_back(sequence);
  const auto older = [this](std::uint32_t a, std::uint32_t b) {
    return records_[a].arrival < records_[b].arrival;
  };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), record, older), record);
  step.plan.retracted.push_back(sequence.info.sequence);
  ++retractions_;
}

// Pages, promise and slot go back; the sequence is as it was before admission.
void Scheduler::give_back(Sequence& sequence) {
  table_.close(sequence.slot,
               [&](GroupId group, PageId page) { pool_.give(group, page, owner_of(sequence)); });
  free_slots_.push_back(sequence.slot);
  sequence.promise.release();
  sequence.slot = kPaddingSlot;
  sequence.state = State::waiting;
  sequence.planned = 0;
  sequence.literals = 0;
  sequence.committed = kv::Committed{};
}

// After the last chunk only the page of the first decoded token stays promised.
void Scheduler::keep_tail_promise(Sequence& sequence) {
  const std::int32_t next = std::min(sequence.planned + 1, sequence.most_kv_tokens());
  kv::PageCounts tail;
  for (int g = 0; g < table_.groups(); ++g) {
    const GroupId group = group_id(g);
    tail[group] = kv::pages_for(table_.rule(group), next) -
                  static_cast<std::int64_t>(table_.row(sequence.slot, group).size());
  }
  sequence.promise.shrink_to(tail);
}

}  // namespace quire::scheduler
