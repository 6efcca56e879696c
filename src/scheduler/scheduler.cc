#include "scheduler/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::scheduler {
namespace {

kv::TableConfig table_config(const SchedulerConfig& config, const kv::PagePool& pool) {
  kv::TableConfig table{config.max_running, config.max_context, {}};
  for (int g = 0; g < pool.groups(); ++g)
    table.groups.push_back(pool.group(GroupId{static_cast<std::uint32_t>(g)}).rule);
  return table;
}

// The most tokens of one sequence whose pages an empty pool can hold, up to `limit`.
std::int32_t longest_fit(const SchedulerConfig& config, const kv::PagePool& pool) {
  const auto fits = [&](std::int32_t tokens) {
    kv::PageCounts counts;
    for (int g = 0; g < pool.groups(); ++g) {
      const GroupId group{static_cast<std::uint32_t>(g)};
      counts[group] = kv::most_live_pages(pool.group(group).rule, tokens, config.chunk_tokens);
    }
    return pool.fits_empty(counts);
  };
  std::int32_t low = 0;
  std::int32_t high = config.max_context;
  while (low < high) {
    const std::int32_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::create(const SchedulerConfig& config, kv::PagePool& pool) {
  if (config.max_running < 1 || config.chunk_tokens < 1 || config.max_context < 1 || config.max_waiting < 1) {
    return bad_input(
        fmt::format("{} running sequences, chunks of {} tokens, {} tokens of context and {} waiting "
                    "requests: each must be 1 or more",
                    config.max_running, config.chunk_tokens, config.max_context, config.max_waiting));
  }
  const std::int32_t longest = longest_fit(config, pool);
  if (longest < 1) {
    return no_resources(
        fmt::format("the KV cache of {} bytes cannot hold one page of every group for a chunk of {} "
                    "tokens: give it more memory or use smaller pages or chunks",
                    pool.slabs() * pool.plan().slab_bytes, config.chunk_tokens));
  }
  QUIRE_TRY(table, kv::BlockTable::create(table_config(config, pool)));
  return std::unique_ptr<Scheduler>(new Scheduler(config, pool, std::move(table), longest));
}

Scheduler::Scheduler(const SchedulerConfig& config, kv::PagePool& pool, kv::BlockTable table,
                     std::int32_t most_kv_tokens)
    : config_(config),
      pool_(pool),
      table_(std::move(table)),
      tree_(config.cache, pool),
      pacer_(config.target_step_us),
      most_kv_tokens_(most_kv_tokens),
      waiting_(config.policy, config.aging_plans) {
  const auto slots = static_cast<std::size_t>(config.max_running);
  running_.reserve(slots);
  free_slots_.reserve(slots);
  ended_.reserve(slots);
  progressed_.reserve(slots);
  turns_.reserve(slots);
  for (std::size_t slot = slots; slot >= 1; --slot)
    free_slots_.push_back(SlotId{static_cast<std::uint32_t>(slot)});
  for (InFlight& step : steps_) {
    constexpr std::size_t kUpdatesPerStep = 4096;  // room before the list grows
    step.plan.rows.reserve(slots);
    step.plan.retracted.reserve(slots);
    step.plan.admitted.reserve(slots);
    step.plan.updates.reserve(kUpdatesPerStep);
    step.records.reserve(slots);
  }
}

// Sequences that still run are dropped with their pages: no step of theirs may be in flight on the device.
Scheduler::~Scheduler() {
  for (InFlight& step : steps_) unpin(step);
  for (Sequence& sequence : records_) {
    if (sequence.state == State::running) give_back(sequence);
  }
}

std::int64_t Scheduler::most_updates() const {
  std::int64_t longest_row = 0;
  for (std::uint32_t g = 0; g < static_cast<std::uint32_t>(table_.groups()); ++g)
    longest_row = std::max(longest_row, table_.capacity(GroupId{g}));
  // A page for every token at worst, one more per row for what straddles a border, and shared ones.
  return table_.groups() * (longest_row + config_.chunk_tokens + 2 * config_.max_running);
}

// ---- requests ------------------------------------------------------------------------------------------

Status Scheduler::check(const RequestInfo& info) const {
  const std::int32_t output = info.answer ? info.max_new_tokens : 0;
  if (info.prompt_tokens < 1) return bad_input("an empty prompt: give at least one token");
  if (info.answer && output < 1) return bad_input(fmt::format("{} new tokens: ask for 1 or more", output));
  if (info.priority < 0 || info.priority > kMaxPriority)
    return bad_input(fmt::format("priority {}: use 0 to {}", info.priority, kMaxPriority));
  const std::int64_t total = std::int64_t{info.prompt_tokens} + output;
  // The first token of an answer needs no room: nothing follows it, so its KV is never written.
  if (info.prompt_tokens > config_.max_context || (total > config_.max_context && output > 1)) {
    const std::int32_t left = config_.max_context - info.prompt_tokens;
    const std::int32_t room = left < 0 ? 0 : std::max(left, 1);
    return bad_input(fmt::format("{} prompt and {} new tokens are {}, the context is limited to {}: {}",
                                 info.prompt_tokens, output, total, config_.max_context,
                                 room >= 1 && info.answer ? fmt::format("ask for at most {} new tokens", room)
                                                          : "shorten the prompt"));
  }
  Sequence sequence;
  sequence.info = info;
  if (sequence.most_kv_tokens() > most_kv_tokens_) {
    const std::int32_t room = most_kv_tokens_ + 1 - info.prompt_tokens;
    return no_resources(
        fmt::format("the request needs KV for {} tokens, the whole cache holds one sequence of at most "
                    "{}: {}, or give the KV cache more memory (--kv-memory)",
                    sequence.most_kv_tokens(), most_kv_tokens_,
                    room >= 1 && info.answer ? fmt::format("ask for at most {} new tokens", room)
                                             : "shorten the prompt"));
  }
  if (waiting() >= config_.max_waiting) {
    return no_resources(fmt::format("{} requests are waiting, the limit is {}: try again later", waiting(),
                                    config_.max_waiting));
  }
  return {};
}

Status Scheduler::submit(const RequestInfo& info) {
  QUIRE_TRY_STATUS(check(info));
  QUIRE_CHECK(!by_id_.contains(info.sequence.value), "sequence {} is known", info.sequence.value);
  Sequence sequence;
  sequence.info = info;
  sequence.info.space = nullptr;
  sequence.arrival = arrivals_++;
  // Levels and plans of waiting in one number: it never changes, since everybody's waiting grows alike.
  if (config_.policy == Policy::priority)
    sequence.rank = std::int64_t{info.priority} * config_.aging_plans - static_cast<std::int64_t>(plans_);
  if (info.tokens != nullptr && tree_.enabled())
    sequence.space = tree_.open(info.space == nullptr ? kv::NamespaceKey{} : *info.space);
  std::uint32_t record = static_cast<std::uint32_t>(records_.size());
  if (spare_records_.empty()) {
    records_.push_back(std::move(sequence));
    // What commit() and retract() do later must not allocate.
    spare_records_.reserve(records_.capacity());
    waiting_.reserve(records_.capacity());
  } else {
    record = spare_records_.back();
    spare_records_.pop_back();
    records_[record] = std::move(sequence);
  }
  by_id_.emplace(info.sequence.value, record);
  enqueue(record);
  ++live_;
  if (info.deadline_us > 0 && (earliest_deadline_us_ == 0 || info.deadline_us < earliest_deadline_us_))
    earliest_deadline_us_ = info.deadline_us;
  return {};
}

void Scheduler::enqueue(std::uint32_t record) {
  const Sequence& sequence = records_[record];
  waiting_.add({.record = record, .arrival = sequence.arrival, .rank = sequence.rank, .since = plans_});
}

bool Scheduler::is_live(SequenceId sequence) const {
  const auto found = by_id_.find(sequence.value);
  return found != by_id_.end() && !records_[found->second].ended;
}

bool Scheduler::is_running(SequenceId sequence) const {
  return is_live(sequence) && records_[by_id_.at(sequence.value)].state == State::running;
}

bool Scheduler::cancel(SequenceId sequence) {
  if (!is_live(sequence)) return false;
  end(by_id_.at(sequence.value));
  return true;
}

std::span<const SequenceId> Scheduler::expire(std::int64_t now_us) {
  expired_.clear();
  if (earliest_deadline_us_ == 0 || now_us <= earliest_deadline_us_) return expired_;
  earliest_deadline_us_ = 0;
  for (const Sequence& sequence : records_) {
    const std::int64_t deadline = sequence.info.deadline_us;
    if (deadline == 0 || sequence.ended) continue;
    if (deadline < now_us) {
      expired_.push_back(sequence.info.sequence);
    } else if (earliest_deadline_us_ == 0 || deadline < earliest_deadline_us_) {
      earliest_deadline_us_ = deadline;
    }
  }
  for (const SequenceId sequence : expired_) cancel(sequence);
  return expired_;
}

// No more rows for this sequence. What it holds goes back now, or with the last step that names it.
void Scheduler::end(std::uint32_t record) {
  Sequence& sequence = records_[record];
  if (sequence.state == State::running) {
    publish(sequence);
    running_.erase(std::find(running_.begin(), running_.end(), record));
  } else {
    waiting_.remove(record);
  }
  sequence.info.tokens = nullptr;  // the caller's, who may drop them now
  sequence.ended = true;
  --live_;
  if (sequence.in_flight == 0) {
    forget(record);
  } else if (sequence.state == State::running) {
    ++ending_;
  }
}

void Scheduler::forget(std::uint32_t record) {
  Sequence& sequence = records_[record];
  if (sequence.state == State::running) give_back(sequence);
  if (sequence.space.value != 0) tree_.close(sequence.space);
  by_id_.erase(sequence.info.sequence.value);
  sequence = Sequence{};
  spare_records_.push_back(record);
}

// ---- commit --------------------------------------------------------------------------------------------

std::span<const Ended> Scheduler::commit(std::span<const RowResult> results) {
  QUIRE_CHECK(in_flight_ > 0, "no step is in flight");
  InFlight& step = steps_[(next_step_ - static_cast<std::uint64_t>(in_flight_)) % kMaxInFlight];
  QUIRE_CHECK(results.size() == step.plan.rows.size(), "{} results for {} rows", results.size(),
              step.plan.rows.size());
  --in_flight_;
  unpin(step);
  ended_.clear();
  for (std::size_t i = 0; i < results.size(); ++i) commit_row(step.plan.rows[i], step.records[i], results[i]);
  return ended_;
}

// The copies of the step have run: their sources are as free as anything else.
void Scheduler::unpin(InFlight& step) {
  if (!step.sources.empty()) --pinned_steps_;
  for (const Pin& pin : step.pins)
    pool_.give(pin.group, pin.page, kv::Owner{kv::OwnerKind::transfer, pin.sequence.value});
  for (const kv::NodeRef source : step.sources) tree_.release(source);
  step.pins.clear();
  step.sources.clear();
}

void Scheduler::commit_row(const PlanRow& row, std::uint32_t record, const RowResult& result) {
  Sequence& sequence = records_[record];
  QUIRE_CHECK(sequence.info.sequence == row.sequence && sequence.in_flight > 0, "row of sequence {}",
              row.sequence.value);
  --sequence.in_flight;
  if (sequence.ended) {
    if (sequence.in_flight > 0) return;
    if (sequence.state == State::running) --ending_;
    forget(record);
    return;
  }
  QUIRE_CHECK(result.finished || result.accepted == (row.yields_token ? 1 : 0), "sequence {} accepted {}",
              row.sequence.value, result.accepted);
  // A retracted sequence waits: its pages are gone, but the token of the step in flight counts.
  if (sequence.state == State::running) sequence.committed = kv::Committed{row.visible.tokens};
  sequence.generated += result.accepted;
  if (sequence.info.score)
    sequence.scored = std::max(sequence.scored, std::min(row.visible.tokens, sequence.info.prompt_tokens));
  const bool scored = !sequence.info.answer && sequence.scored == sequence.info.prompt_tokens;
  const bool full = sequence.info.answer && sequence.generated == sequence.info.max_new_tokens;
  if (!result.finished && !scored && !full) return;
  ended_.push_back(Ended{row.sequence, result.finished ? EndReason::finished
                                       : scored        ? EndReason::scored
                                                       : EndReason::length});
  if (result.spoiled) sequence.info.tokens = nullptr;
  end(record);
}

}  // namespace quire::scheduler
