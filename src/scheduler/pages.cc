// The scheduler's dealings with pages: cover a length, retract, publish, give back.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {
namespace {

GroupId group_id(int index) { return GroupId{static_cast<std::uint32_t>(index)}; }

}  // namespace

kv::PageCounts Scheduler::most_pages(std::int32_t kv_tokens) const {
  kv::PageCounts counts;
  for (int g = 0; g < table_.groups(); ++g) {
    counts[group_id(g)] = kv::most_live_pages(table_.rule(group_id(g)), kv_tokens, config_.chunk_tokens);
  }
  return counts;
}

// Promises more, at the cost of the prefix tree.
bool Scheduler::grow(Sequence& sequence, const kv::PageCounts& missing) {
  if (std::exchange(refuse_next_, false)) return false;
  return sequence.promise.grow(missing) ||
         (tree_.make_room(missing, kv::Pressure::growth) && sequence.promise.grow(missing));
}

// Makes the sequence's rows reach `end` tokens and drops what windows have left behind. False, and no page
// taken, when there is none to be had.
bool Scheduler::cover(Sequence& sequence, std::int32_t end) {
  tree_.seal(sequence.info.sequence, sequence.lease, sequence.planned);
  kv::PageCounts missing;
  bool short_of = false;
  for (int g = 0; g < table_.groups(); ++g) {
    const GroupId group = group_id(g);
    // The rows before this one always succeed (they are literals, or one decoded token), so what the row
    // planned now does not see is dead, though steps in flight still read it: the stream orders them first.
    const std::int64_t live = kv::first_live_entry(table_.rule(group), kv::Committed{sequence.planned});
    kv::PageCounts released;
    table_.release_below(sequence.slot, group, live, [&](PageId page) {
      pool_.give(group, page, sequence.owner());
      ++released[group];
    });
    // While the prompt is in progress, the promise and the held pages stay at what admission asked for, where
    // the pages came free: those that others share did not.
    if (released[group] > 0 && sequence.extending()) sequence.promise.grow(released);
    const std::int64_t needed = kv::pages_for(table_.rule(group), end) -
                                static_cast<std::int64_t>(table_.row(sequence.slot, group).size());
    missing[group] = std::max<std::int64_t>(0, needed - sequence.promise.left(group));
    short_of = short_of || missing[group] > 0;
  }
  if (short_of && !grow(sequence, missing)) return false;
  for (int g = 0; g < table_.groups(); ++g) {
    const GroupId group = group_id(g);
    while (table_.allocated(sequence.slot, group).tokens < end) {
      table_.append(sequence.slot, group, sequence.promise.take(group, table_.last(sequence.slot, group)));
    }
  }
  return true;
}

// Covers `end` for the running sequence at `index`, at the cost of others behind it if it must be. False when
// it gets no row now: it was retracted itself, or pages come back soon.
bool Scheduler::cover_or_retract(InFlight& step, std::size_t index, std::int32_t end) {
  while (!cover(records_[running_[index]], end)) {
    if (ending_ > 0 || pinned_steps_ > 0) {
      out_of_pages_ = true;
      return false;
    }
    const std::size_t victim = pick_victim(index);
    retract(step, victim);
    if (victim == index) return false;
  }
  return true;
}

// Who loses least: fewest tokens of its own per page that comes free, the last in order among equals. `index`
// itself when nobody stands behind it.
std::size_t Scheduler::pick_victim(std::size_t index) const {
  std::size_t best = index;
  std::int64_t best_tokens = 0;
  std::int64_t best_pages = 0;
  for (std::size_t i = index + 1; i < running_.size(); ++i) {
    const Sequence& sequence = records_[running_[i]];
    const std::int64_t tokens = sequence.planned - sequence.hit;
    std::int64_t pages = 0;
    for (int g = 0; g < table_.groups(); ++g) {
      const std::int64_t shared =
          sequence.hit / table_.rule(group_id(g)).page_tokens - table_.live_begin(sequence.slot, group_id(g));
      pages += table_.live_pages(sequence.slot, group_id(g)) - std::max<std::int64_t>(0, shared);
    }
    if (best != index && tokens * best_pages > best_tokens * pages) continue;
    best = i;
    best_tokens = tokens;
    best_pages = pages;
  }
  return best;
}

void Scheduler::retract(InFlight& step, std::size_t index) {
  const std::uint32_t record = running_[index];
  Sequence& sequence = records_[record];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  publish(sequence);
  give_back(sequence);
  enqueue(record);
  step.plan.retracted.push_back(sequence.info.sequence);
  ++retractions_;
}

// ---- prefixes ------------------------------------------------------------------------------------------

// What the sequence has in the cache and the host knows the tokens of, joins the tree.
void Scheduler::publish(Sequence& sequence) {
  const std::int32_t known = sequence.known();
  if (sequence.space.value == 0 || sequence.info.tokens == nullptr || known <= sequence.published) return;
  kv::Publication publication{.space = sequence.space,
                              .sequence = sequence.info.sequence,
                              .priority = sequence.info.priority,
                              .tokens = sequence.tokens(known)};
  for (int g = 0; g < table_.groups(); ++g)
    publication.rows[static_cast<std::size_t>(g)] = table_.row(sequence.slot, group_id(g));
  tree_.publish(publication, sequence.lease);
  sequence.published = known;
}

// Of prompts in progress: what earlier plans compute. Before windows give pages back, so that the tree gets
// those too.
void Scheduler::publish_progress() {
  for (const Progress& progress : progressed_) {
    Sequence& sequence = records_[progress.record];
    if (sequence.info.sequence == progress.sequence && sequence.state == State::running) publish(sequence);
  }
  progressed_.clear();
}

// Pages, promise and slot go back; the sequence is as it was before admission. Its tail page goes to the tree
// when it was lent.
void Scheduler::give_back(Sequence& sequence) {
  const auto kept = tree_.settle(sequence.info.sequence, sequence.lease);
  table_.close(sequence.slot, [&](GroupId group, PageId page) {
    if (page != kept[group.value]) pool_.give(group, page, sequence.owner());
  });
  tree_.release(sequence.lease);
  free_slots_.push_back(sequence.slot);
  sequence.promise.release();
  sequence.slot = kPaddingSlot;
  sequence.state = State::waiting;
  sequence.planned = 0;
  sequence.literals = 0;
  sequence.hit = 0;
  sequence.published = 0;
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
