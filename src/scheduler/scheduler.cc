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
  return std::unique_ptr<Scheduler>(new Scheduler(config, pool, longest));
}

Scheduler::Scheduler(const SchedulerConfig& config, kv::PagePool& pool, std::int32_t most_kv_tokens)
    : config_(config), pool_(pool), table_(table_config(config, pool)), most_kv_tokens_(most_kv_tokens) {
  const auto slots = static_cast<std::size_t>(config.max_running);
  running_.reserve(slots);
  free_slots_.reserve(slots);
  ended_.reserve(slots);
  for (std::size_t slot = slots; slot >= 1; --slot)
    free_slots_.push_back(SlotId{static_cast<std::uint32_t>(slot)});
  for (InFlight& step : steps_) {
    constexpr std::size_t kUpdatesPerStep = 4096;  // room before the list grows
    step.plan.rows.reserve(slots);
    step.plan.retracted.reserve(slots);
    step.plan.updates.reserve(kUpdatesPerStep);
    step.records.reserve(slots);
  }
}

// Sequences that still run are dropped with their pages: no step of theirs may be in flight on the device.
Scheduler::~Scheduler() {
  for (Sequence& sequence : records_) {
    if (sequence.state == State::running) give_back(sequence);
  }
}

// ---- requests ------------------------------------------------------------------------------------------

Status Scheduler::submit(const RequestInfo& info) {
  const std::int32_t output = info.score ? 0 : info.max_new_tokens;
  if (info.prompt_tokens < 1) return bad_input("an empty prompt: give at least one token");
  if (!info.score && output < 1) return bad_input(fmt::format("{} new tokens: ask for 1 or more", output));
  const std::int64_t total = std::int64_t{info.prompt_tokens} + output;
  if (total > config_.max_context) {
    const std::int32_t room = config_.max_context - info.prompt_tokens;
    return bad_input(fmt::format("{} prompt and {} new tokens are {}, the context is limited to {}: {}",
                                 info.prompt_tokens, output, total, config_.max_context,
                                 room >= 1 && !info.score ? fmt::format("ask for at most {} new tokens", room)
                                                          : "shorten the prompt"));
  }
  Sequence sequence;
  sequence.info = info;
  if (sequence.most_kv_tokens() > most_kv_tokens_) {
    return no_resources(
        fmt::format("the request needs KV for {} tokens, the whole cache holds one sequence of at most "
                    "{}: ask for less or give the cache more memory",
                    sequence.most_kv_tokens(), most_kv_tokens_));
  }
  if (waiting() >= config_.max_waiting) {
    return no_resources(fmt::format("{} requests are waiting, the limit is {}: try again later", waiting(),
                                    config_.max_waiting));
  }
  QUIRE_CHECK(!by_id_.contains(info.sequence.value), "sequence {} is known", info.sequence.value);
  sequence.arrival = arrivals_++;
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
  waiting_.push_back(record);
  ++live_;
  return {};
}

bool Scheduler::is_live(SequenceId sequence) const {
  const auto found = by_id_.find(sequence.value);
  return found != by_id_.end() && !records_[found->second].ended;
}

bool Scheduler::cancel(SequenceId sequence) {
  if (!is_live(sequence)) return false;
  end(by_id_.at(sequence.value));
  return true;
}

// No more rows for this sequence. What it holds goes back now, or with the last step that names it.
void Scheduler::end(std::uint32_t record) {
  Sequence& sequence = records_[record];
  sequence.ended = true;
  --live_;
  std::vector<std::uint32_t>& list = sequence.state == State::running ? running_ : waiting_;
  list.erase(std::find(list.begin(), list.end(), record));
  if (sequence.in_flight == 0) {
    forget(record);
  } else if (sequence.state == State::running) {
    ++ending_;
  }
}

void Scheduler::forget(std::uint32_t record) {
  Sequence& sequence = records_[record];
  if (sequence.state == State::running) give_back(sequence);
  by_id_.erase(sequence.info.sequence.value);
  sequence = Sequence{};
  spare_records_.push_back(record);
}

// ---- plan ----------------------------------------------------------------------------------------------

const StepPlan* Scheduler::plan() {
  QUIRE_CHECK(in_flight_ < kMaxInFlight, "{} steps are in flight", in_flight_);
  InFlight& step = steps_[next_step_ % kMaxInFlight];
  StepPlan& plan = step.plan;
  plan.rows.clear();
  plan.updates.clear();
  plan.retracted.clear();
  step.records.clear();
  plan = StepPlan{next_step_,
                  std::move(plan.rows),
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  0,
                  {},
                  std::move(plan.updates),
                  std::move(plan.retracted)};
  chunk_left_ = config_.chunk_tokens;
  out_of_pages_ = false;
  plan_decodes(step);
  plan_extends(step);
  // Pages freed by a retraction are for those that run; a newcomer would only be retracted next.
  const bool tight = out_of_pages_ || !plan.retracted.empty();
  if (!tight || (plan.rows.empty() && in_flight_ == 0)) admit(step);
  table_.take_updates(plan.updates);
  if (plan.rows.empty()) {
    QUIRE_CHECK(in_flight_ > 0 || live_ == 0, "{} sequences, none can go on", live_);
    return nullptr;
  }
  ++next_step_;
  ++in_flight_;
  return &plan;
}

void Scheduler::plan_decodes(InFlight& step) {
  // Oldest first: retraction takes from the back, so it never meets a sequence that has its row already.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const std::uint32_t record = running_[i];
    if (!records_[record].decoding()) continue;
    if (!cover_or_retract(step, record, records_[record].planned + 1)) continue;
    PlanRow& row = add_row(step, record, RowKind::decode, 1);
    row.input = Input::last_output;
    close_row(step);
  }
}

void Scheduler::plan_extends(InFlight& step) {
  for (std::size_t i = 0; i < running_.size() && chunk_left_ > 0; ++i) {
    if (records_[running_[i]].extending()) plan_chunk(step, running_[i]);
  }
}

void Scheduler::plan_chunk(InFlight& step, std::uint32_t record) {
  Sequence& sequence = records_[record];
  const std::int32_t count = std::min(chunk_left_, sequence.literals - sequence.planned);
  QUIRE_CHECK(cover(sequence, sequence.planned + count),
              "sequence {} was admitted without pages for [{}, {})", sequence.info.sequence.value,
              sequence.planned, sequence.planned + count);
  chunk_left_ -= count;
  add_row(step, record, RowKind::extend, count);
  close_row(step);
  if (!sequence.extending()) keep_tail_promise(sequence);
}

void Scheduler::admit(InFlight& step) {
  while (!waiting_.empty() && chunk_left_ > 0 && !free_slots_.empty()) {
    // First come, first served: nobody overtakes a large request, or it could wait for ever.
    if (!admit_one(step, waiting_.front())) return;
  }
}

bool Scheduler::admit_one(InFlight& step, std::uint32_t record) {
  Sequence& sequence = records_[record];
  // A retracted sequence needs all its output on the host first.
  if (sequence.in_flight > 0) return false;
  const std::int32_t literals = sequence.info.prompt_tokens + sequence.generated;
  const kv::PageCounts need = most_pages(std::min(literals + 1, sequence.most_kv_tokens()));
  // A page for each running sequence stays free, or the newcomer would be retracted at once.
  kv::PageCounts with_headroom = need;
  for (int g = 0; g < table_.groups(); ++g) with_headroom.of[static_cast<std::size_t>(g)] += running();
  sequence.promise =
      pool_.reserve(kv::Owner{kv::OwnerKind::request, sequence.info.sequence.value}, with_headroom);
  if (!sequence.promise.held()) return false;
  sequence.promise.shrink_to(need);
  waiting_.erase(waiting_.begin());
  const auto older = [this](std::uint32_t a, std::uint32_t b) {
    return records_[a].arrival < records_[b].arrival;
  };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), record, older), record);
  sequence.state = State::running;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.literals = literals;
  sequence.planned_outputs = sequence.generated;
  table_.open(sequence.slot, sequence.info.sequence);
  plan_chunk(step, record);
  return true;
}

PlanRow& Scheduler::add_row(InFlight& step, std::uint32_t record, RowKind kind, std::int32_t count) {
  Sequence& sequence = records_[record];
  StepPlan& plan = step.plan;
  PlanRow row;
  row.sequence = sequence.info.sequence;
  row.slot = sequence.slot;
  row.kind = kind;
  row.opens_slot = sequence.planned == 0;
  row.first_row = plan.total_q;
  row.query_begin = sequence.planned;
  row.query_count = count;
  row.visible = kv::Visible{sequence.planned + count};
  row.allocated = table_.allocated(sequence.slot, GroupId{0});
  for (int g = 1; g < table_.groups(); ++g) {
    row.allocated =
        std::min(row.allocated, table_.allocated(sequence.slot, GroupId{static_cast<std::uint32_t>(g)}));
  }
  row.updates_begin = static_cast<std::int32_t>(plan.updates.size());
  sequence.planned += count;
  if (sequence.info.score) {
    row.logits_begin = std::max(row.query_begin, sequence.scored);
    row.logits_count = std::max(0, row.visible.tokens - row.logits_begin);
  } else if (!sequence.extending()) {
    row.logits_begin = row.visible.tokens - 1;
    row.logits_count = 1;
    row.yields_token = true;
    row.output_index = sequence.planned_outputs++;
  }
  ++sequence.in_flight;
  step.records.push_back(record);
  plan.rows.push_back(row);
  return plan.rows.back();
}

// Books the finished row into the plan's totals, with the table changes that it caused.
void Scheduler::close_row(InFlight& step) {
  StepPlan& plan = step.plan;
  PlanRow& row = plan.rows.back();
  table_.take_updates(plan.updates);
  row.updates_count = static_cast<std::int32_t>(plan.updates.size()) - row.updates_begin;
  plan.total_q += row.query_count;
  plan.total_logits += row.logits_count;
  plan.max_q = std::max(plan.max_q, row.query_count);
  plan.max_visible = std::max(plan.max_visible, row.visible);
  if (row.kind == RowKind::decode) {
    ++plan.decode_rows;
    plan.decode_q += row.query_count;
  } else {
    ++plan.extend_rows;
  }
}

// ---- commit --------------------------------------------------------------------------------------------

std::span<const Ended> Scheduler::commit(std::span<const RowResult> results) {
  QUIRE_CHECK(in_flight_ > 0, "no step is in flight");
  const InFlight& step = steps_[(next_step_ - static_cast<std::uint64_t>(in_flight_)) % kMaxInFlight];
  QUIRE_CHECK(results.size() == step.plan.rows.size(), "{} results for {} rows", results.size(),
              step.plan.rows.size());
  --in_flight_;
  ended_.clear();
  for (std::size_t i = 0; i < results.size(); ++i) commit_row(step.plan.rows[i], step.records[i], results[i]);
  return ended_;
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
  if (sequence.info.score) sequence.scored = std::max(sequence.scored, row.visible.tokens);
  const bool scored = sequence.info.score && sequence.scored == sequence.info.prompt_tokens;
  const bool full = !sequence.info.score && sequence.generated == sequence.info.max_new_tokens;
  if (!result.finished && !scored && !full) return;
  ended_.push_back(Ended{row.sequence, result.finished ? EndReason::finished
                                       : scored        ? EndReason::scored
                                                       : EndReason::length});
  end(record);
}

}  // namespace quire::scheduler
