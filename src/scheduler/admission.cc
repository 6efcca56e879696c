// Admission: who comes next, what of its prompt is known already, and whether its pages can be promised.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {
namespace {

// Of one plan, so that its cost stays bounded with ten thousand waiting.
constexpr int kMostHeld = 32;         // candidates that wait for another one's prompt
constexpr std::size_t kProbes = 512;  // looks into the tree for Policy::longest_prefix
constexpr int kMostLooks = 16;        // until the best one's match is up to date

GroupId group_id(std::size_t index) { return GroupId{static_cast<std::uint32_t>(index)}; }

// Most tokens that may come from the cache: the last one is computed for its logits, a prompt to be scored
// for all.
std::int32_t hit_limit(const Sequence& sequence, std::int32_t literals) {
  const bool scores = sequence.info.score && sequence.scored < sequence.info.prompt_tokens;
  return scores ? std::min(sequence.scored, literals - 1) : literals - 1;
}

}  // namespace

void Scheduler::admit(InFlight& step) {
  if (waiting_.empty() || chunk_left_ == 0 || free_slots_.empty()) return;
  if (config_.policy == Policy::longest_prefix) {
    for (std::size_t i = 0; i < std::min(kProbes, waiting_.size()); ++i)
      refresh_match(next_probe_++ % waiting_.size());
  }
  int held = 0;
  while (!waiting_.empty() && chunk_left_ > 0 && !free_slots_.empty() && held < kMostHeld) {
    const std::size_t index = next_waiting();
    if (index == WaitingList::kNone) return;
    switch (admit_one(step, waiting_[index].record)) {
      case Verdict::admitted:
        waiting_.remove_at(index);
        break;
      case Verdict::held:
        waiting_[index].skipped = plans_ + 1;
        ++held;
        break;
      case Verdict::no_room:
        return;  // nobody overtakes a large request, or it could wait for ever
    }
  }
}

std::size_t Scheduler::next_waiting() {
  std::size_t index = waiting_.next(plans_);
  for (int look = 0; config_.policy == Policy::longest_prefix && look < kMostLooks; ++look) {
    if (index == WaitingList::kNone) return index;
    const std::int32_t cached = waiting_[index].cached;
    refresh_match(index);
    if (waiting_[index].cached >= cached) return index;
    index = waiting_.next(plans_);
  }
  return index;
}

void Scheduler::refresh_match(std::size_t index) {
  Waiting& waiting = waiting_[index];
  Sequence& sequence = records_[waiting.record];
  const std::int32_t limit = hit_limit(sequence, sequence.info.prompt_tokens + sequence.generated);
  waiting.cached = tree_.probe(sequence.space, sequence.tokens(limit), sequence.probe);
}

Scheduler::Verdict Scheduler::admit_one(InFlight& step, std::uint32_t record) {
  Sequence& sequence = records_[record];
  // A retracted sequence needs all its output on the host first.
  if (sequence.in_flight > 0) return Verdict::no_room;
  if (still_held(sequence)) return Verdict::held;
  const std::int32_t literals = sequence.info.prompt_tokens + sequence.generated;
  const std::int32_t limit = hit_limit(sequence, literals);
  kv::Match match = tree_.match(sequence.space, sequence.tokens(literals), limit);
  if (is_held(sequence, match.tokens, limit)) return Verdict::held;
  if (try_match(step, record, match, literals)) return Verdict::admitted;
  // Nobody else holds a page: what is in the way is what it would share (the source of a copy, a window's
  // pages beside its own). With less of it there is room, at last with nothing: then it fits as in an empty
  // pool.
  while (running_.empty() && in_flight_ == 0 && match.tokens > 0) {
    const std::int32_t partial = match.tokens % table_.rule(GroupId{0}).page_tokens;
    match = tree_.match(sequence.space, sequence.tokens(literals), partial > 0 ? match.tokens - partial : 0);
    if (try_match(step, record, match, literals)) return Verdict::admitted;
  }
  return Verdict::no_room;
}

bool Scheduler::try_match(InFlight& step, std::uint32_t record, const kv::Match& match,
                          std::int32_t literals) {
  Sequence& sequence = records_[record];
  const std::int64_t entries = table_.groups() * kv::pages_for(table_.rule(GroupId{0}), match.tokens);
  if (entries > entries_left_) return false;
  const Candidate candidate = take_prefix(step, sequence, match);
  if (!promise_pages(sequence, candidate, literals)) {
    leave_prefix(step, sequence, candidate);
    return false;
  }
  entries_left_ -= entries;
  seat(step, record, candidate, literals);
  return true;
}

// ---- prompts in progress ---------------------------------------------------------------------------------

bool Scheduler::still_held(const Sequence& sequence) const {
  if (sequence.holder_id.value == 0) return false;
  const Sequence& holder = records_[sequence.holder];
  return holder.info.sequence == sequence.holder_id && !holder.ended && holder.state == State::running &&
         holder.published < sequence.held_until;
}

// Whether a prompt in progress will give this one much more than the tree can give now.
bool Scheduler::is_held(Sequence& sequence, std::int32_t cached, std::int32_t limit) {
  sequence.holder_id = SequenceId{};
  if (config_.hold_tokens <= 0 || sequence.space.value == 0) return false;
  for (const std::uint32_t record : running_) {
    const Sequence& other = records_[record];
    if (other.space != sequence.space || other.published >= other.literals) continue;
    const std::int32_t common = kv::common_prefix(other.tokens(other.literals), sequence.tokens(limit));
    if (common - cached < config_.hold_tokens || common <= other.published) continue;
    sequence.holder = record;
    sequence.holder_id = other.info.sequence;
    sequence.held_until = common;
    return true;
  }
  return false;
}

// ---- a candidate's prefix and pages ----------------------------------------------------------------------

// Locks what the candidate would share, so that making room for the rest does not evict it.
Scheduler::Candidate Scheduler::take_prefix(InFlight& step, Sequence& sequence, const kv::Match& match) {
  Candidate candidate{match, {}, step.pins.size()};
  for (auto& pages : shared_) pages.clear();
  if (match.tokens == 0) return candidate;
  sequence.lease = tree_.lock(match);
  if (match.adoptable) tree_.adopt(match, sequence.info.sequence, sequence.lease);
  const std::int32_t page_tokens = table_.rule(GroupId{0}).page_tokens;
  const std::int64_t whole = match.tokens / page_tokens;
  tree_.pages(sequence.lease.path, [&](std::int64_t entry, GroupId group, PageId page) {
    const kv::GroupRule& rule = table_.rule(group);
    if (entry >= whole || entry < kv::first_live_entry(rule, kv::Committed{match.tokens})) return;
    shared_[group.value].push_back(page);
    pool_.adopt(group, page, sequence.owner());
  });
  if (match.tokens % page_tokens == 0 || match.adoptable) return candidate;
  candidate.source = tree_.lock_source(match);
  for (std::size_t g = 0; g < static_cast<std::size_t>(table_.groups()); ++g) {
    const PageId page = tree_.page_of(candidate.source, whole, group_id(g));
    pool_.adopt(group_id(g), page, kv::Owner{kv::OwnerKind::transfer, sequence.info.sequence.value});
    step.pins.push_back({group_id(g), page, sequence.info.sequence});
  }
  return candidate;
}

void Scheduler::leave_prefix(InFlight& step, Sequence& sequence, const Candidate& candidate) {
  for (std::size_t g = 0; g < shared_.size(); ++g) {
    for (const PageId page : shared_[g]) pool_.give(group_id(g), page, sequence.owner());
  }
  for (; step.pins.size() > candidate.first_pin; step.pins.pop_back()) {
    const Pin& pin = step.pins.back();
    pool_.give(pin.group, pin.page, kv::Owner{kv::OwnerKind::transfer, pin.sequence.value});
  }
  if (candidate.source) tree_.release(candidate.source);
  tree_.settle(sequence.info.sequence, sequence.lease);
  tree_.release(sequence.lease);
}

bool Scheduler::promise_pages(Sequence& sequence, const Candidate& candidate, std::int32_t literals) {
  const bool alone = running_.empty() && in_flight_ == 0;
  if (!alone && std::exchange(refuse_next_, false)) return false;
  const std::int32_t kv_tokens = std::min(literals + 1, sequence.most_kv_tokens());
  const std::int64_t have =
      candidate.match.tokens / table_.rule(GroupId{0}).page_tokens + (candidate.match.adoptable ? 1 : 0);
  kv::PageCounts need = most_pages(kv_tokens);
  // A page for each running sequence stays free, or the newcomer would be retracted at once.
  kv::PageCounts with_headroom;
  for (std::size_t g = 0; g < static_cast<std::size_t>(table_.groups()); ++g) {
    // A window's shared pages go back without coming free; its own are as many as ever.
    need.of[g] = std::min(need.of[g], kv::pages_for(table_.rule(group_id(g)), kv_tokens) - have);
    with_headroom.of[g] = need.of[g] + running();
  }
  if (!tree_.make_room(with_headroom, kv::Pressure::admission)) return false;
  sequence.promise = pool_.reserve(sequence.owner(), with_headroom);
  QUIRE_CHECK(sequence.promise.held(), "sequence {}: room was made and is not there",
              sequence.info.sequence.value);
  sequence.promise.shrink_to(need);
  return true;
}

// ---- a slot --------------------------------------------------------------------------------------------

void Scheduler::seat(InFlight& step, std::uint32_t record, const Candidate& candidate,
                     std::int32_t literals) {
  Sequence& sequence = records_[record];
  const kv::Match& match = candidate.match;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), record,
                                   [this](std::uint32_t a, std::uint32_t b) { return before(a, b); }),
                  record);
  sequence.state = State::running;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.fresh_slot = true;
  sequence.literals = literals;
  sequence.planned_outputs = sequence.generated;
  sequence.planned = sequence.hit = sequence.published = match.tokens;
  sequence.committed = kv::Committed{match.tokens};
  step.plan.admitted.push_back(
      {sequence.info.sequence, match.tokens, match.miss, std::exchange(sequence.admitted, true)});

  Turn turn{.record = record, .kind = RowKind::extend};
  turn.updates_begin = static_cast<std::int32_t>(step.plan.updates.size());
  turn.count = std::min(chunk_left_, literals - match.tokens);
  table_.open(sequence.slot, sequence.info.sequence);
  table_.set_written(sequence.slot, match.tokens);
  tree_.touch(sequence.lease.path, match.tokens, sequence.info.priority);
  for (std::size_t g = 0; g < static_cast<std::size_t>(table_.groups()); ++g)
    fill_row(step, sequence, candidate, group_id(g));
  if (candidate.source) step.sources.push_back(candidate.source);
  QUIRE_CHECK(cover(sequence, match.tokens + turn.count),
              "sequence {} was admitted without pages for [{}, {})", sequence.info.sequence.value,
              match.tokens, match.tokens + turn.count);
  table_.take_updates(step.plan.updates);
  turn.updates_end = static_cast<std::int32_t>(step.plan.updates.size());
  chunk_left_ -= turn.count;
  add_row(step, turn);
}

// The row's shared pages, and the page in which the hit ends: adopted, or a copy.
void Scheduler::fill_row(InFlight& step, Sequence& sequence, const Candidate& candidate, GroupId group) {
  const kv::GroupRule& rule = table_.rule(group);
  const std::int32_t tokens = candidate.match.tokens;
  const std::int64_t whole = tokens / rule.page_tokens;
  table_.skip(sequence.slot, group, std::min(whole, kv::first_live_entry(rule, kv::Committed{tokens})));
  for (const PageId page : shared_[group.value]) table_.append(sequence.slot, group, page);
  if (candidate.match.adoptable)
    table_.append(sequence.slot, group, tree_.page_of(sequence.lease.path, whole, group));
  if (!candidate.source) return;
  const PageId from = tree_.page_of(candidate.source, whole, group);
  const PageId to = sequence.promise.take(group, table_.last(sequence.slot, group));
  table_.append(sequence.slot, group, to);
  step.plan.copies.push_back({group, from, to, tokens % rule.page_tokens});
}

}  // namespace quire::scheduler
