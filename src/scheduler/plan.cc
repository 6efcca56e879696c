// The plan of one step: pages for those that run, in their order; their rows; newcomers.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace quire::scheduler {

const StepPlan* Scheduler::plan() {
  QUIRE_CHECK(in_flight_ < kMaxInFlight, "{} steps are in flight", in_flight_);
  InFlight& step = steps_[next_step_ % kMaxInFlight];
  StepPlan& plan = step.plan;
  begin_plan(step);
  publish_progress();
  cover_running(step);
  add_rows(step, RowKind::decode);
  add_rows(step, RowKind::extend);
  // Pages freed by a retraction are for those that run; a newcomer would only be retracted next.
  const bool tight = out_of_pages_ || !plan.retracted.empty();
  if (!tight || (plan.rows.empty() && in_flight_ == 0)) admit(step);
  table_.take_updates(plan.updates);
  if (!step.sources.empty()) ++pinned_steps_;
  if (plan.rows.empty()) {
    QUIRE_CHECK(in_flight_ > 0 || live_ == 0, "{} sequences, none can go on", live_);
    return nullptr;
  }
  ++next_step_;
  ++in_flight_;
  return &plan;
}

void Scheduler::begin_plan(InFlight& step) {
  StepPlan& plan = step.plan;
  StepPlan fresh;
  fresh.step = next_step_;
  const auto keep = [](auto& from, auto& to) {  // the memory
    from.clear();
    to = std::move(from);
  };
  keep(plan.rows, fresh.rows);
  keep(plan.updates, fresh.updates);
  keep(plan.retracted, fresh.retracted);
  keep(plan.admitted, fresh.admitted);
  keep(plan.copies, fresh.copies);
  plan = std::move(fresh);
  step.records.clear();
  turns_.clear();
  ++plans_;
  out_of_pages_ = false;
  const auto decoders = std::count_if(running_.begin(), running_.end(),
                                      [this](std::uint32_t record) { return records_[record].decoding(); });
  chunk_left_ = pacer_.chunk_tokens(static_cast<std::int32_t>(decoders), config_.chunk_tokens);
  entries_left_ = most_updates() - table_.groups() * (config_.chunk_tokens + 2 * config_.max_running);
}

// First in order first, whatever its kind: retraction takes from those behind, so it never meets a sequence
// that has its turn already.
void Scheduler::cover_running(InFlight& step) {
  for (std::size_t i = 0; i < running_.size();) {
    const std::uint32_t record = running_[i];
    const Sequence& sequence = records_[record];
    Turn turn{.record = record};
    if (sequence.decoding()) {
      turn.count = 1;
    } else if (sequence.extending()) {
      turn.kind = RowKind::extend;
      turn.count = std::min(chunk_left_, sequence.literals - sequence.planned);
    }
    if (turn.count == 0) {
      ++i;
      continue;
    }
    turn.updates_begin = static_cast<std::int32_t>(step.plan.updates.size());
    const bool covered = cover_or_retract(step, i, sequence.planned + turn.count);
    table_.take_updates(step.plan.updates);
    if (covered) {
      turn.updates_end = static_cast<std::int32_t>(step.plan.updates.size());
      if (turn.kind == RowKind::extend) chunk_left_ -= turn.count;
      turns_.push_back(turn);
    }
    if (i < running_.size() && running_[i] == record) ++i;  // else it was retracted itself
  }
}

void Scheduler::add_rows(InFlight& step, RowKind kind) {
  for (const Turn& turn : turns_) {
    if (turn.kind != kind) continue;
    PlanRow& row = add_row(step, turn);
    if (kind == RowKind::decode) row.input = Input::last_output;
  }
}

// Books the row, with the table changes that it caused, into the plan and its totals.
PlanRow& Scheduler::add_row(InFlight& step, const Turn& turn) {
  Sequence& sequence = records_[turn.record];
  StepPlan& plan = step.plan;
  PlanRow row;
  row.sequence = sequence.info.sequence;
  row.slot = sequence.slot;
  row.kind = turn.kind;
  row.opens_slot = sequence.fresh_slot;
  row.first_row = plan.total_q;
  row.query_begin = sequence.planned;
  row.query_count = turn.count;
  row.visible = kv::Visible{sequence.planned + turn.count};
  row.allocated = table_.allocated(sequence.slot, GroupId{0});
  for (int g = 1; g < table_.groups(); ++g) {
    row.allocated =
        std::min(row.allocated, table_.allocated(sequence.slot, GroupId{static_cast<std::uint32_t>(g)}));
  }
  row.updates_begin = turn.updates_begin;
  row.updates_count = turn.updates_end - turn.updates_begin;
  sequence.fresh_slot = false;
  sequence.planned += turn.count;
  table_.set_written(sequence.slot, sequence.planned);
  if (sequence.info.score) {
    row.logits_begin = std::max(row.query_begin, sequence.scored);
    row.logits_count =
        std::max(0, std::min(row.visible.tokens, sequence.info.prompt_tokens) - row.logits_begin);
  }
  if (sequence.info.answer && !sequence.extending()) {
    if (row.logits_count == 0) {
      row.logits_begin = row.visible.tokens - 1;
      row.logits_count = 1;
    }
    row.yields_token = true;
    row.output_index = sequence.planned_outputs++;
  }
  ++sequence.in_flight;
  if (turn.kind == RowKind::extend) {
    progressed_.push_back({turn.record, sequence.info.sequence});
    if (!sequence.extending()) keep_tail_promise(sequence);
    ++plan.extend_rows;
  } else {
    ++plan.decode_rows;
    plan.decode_q += row.query_count;
  }
  plan.total_q += row.query_count;
  plan.total_logits += row.logits_count;
  plan.max_q = std::max(plan.max_q, row.query_count);
  plan.max_visible = std::max(plan.max_visible, row.visible);
  step.records.push_back(turn.record);
  plan.rows.push_back(row);
  return plan.rows.back();
}

bool Scheduler::before(std::uint32_t a, std::uint32_t b) const {
  const Sequence& left = records_[a];
  const Sequence& right = records_[b];
  return left.rank != right.rank ? left.rank > right.rank : left.arrival < right.arrival;
}

}  // namespace quire::scheduler
