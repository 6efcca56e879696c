#include "scheduler/waiting_list.h"

#include <algorithm>

#include "base/check.h"

namespace quire::scheduler {

void WaitingList::add(const Waiting& waiting) {
  const auto at = std::upper_bound(list_.begin(), list_.end(), waiting,
                                   [](const Waiting& a, const Waiting& b) { return a.arrival < b.arrival; });
  list_.insert(at, waiting);
}

void WaitingList::remove_at(std::size_t index) {
  list_.erase(list_.begin() + static_cast<std::ptrdiff_t>(index));
}

void WaitingList::remove(std::uint32_t record) {
  const auto at = std::find_if(list_.begin(), list_.end(),
                               [record](const Waiting& waiting) { return waiting.record == record; });
  QUIRE_CHECK(at != list_.end(), "record {} does not wait", record);
  list_.erase(at);
}

bool WaitingList::before(const Waiting& a, const Waiting& b, std::uint64_t plan) const {
  if (policy_ == Policy::priority && a.rank != b.rank) return a.rank > b.rank;
  if (policy_ == Policy::longest_prefix) {
    const auto patience = static_cast<std::uint64_t>(patience_);
    const bool a_late = plan - a.since > patience;
    const bool b_late = plan - b.since > patience;
    if (a_late != b_late) return a_late;
    if (!a_late && a.cached != b.cached) return a.cached > b.cached;
  }
  return a.arrival < b.arrival;
}

std::size_t WaitingList::next(std::uint64_t plan) const {
  std::size_t best = kNone;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].skipped == plan + 1) continue;
    if (best == kNone || before(list_[i], list_[best], plan)) best = i;
    if (policy_ == Policy::fcfs) break;
  }
  return best;
}

}  // namespace quire::scheduler
