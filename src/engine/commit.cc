// The second half of a step: what came back becomes outputs, and the scheduler learns it.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"
#include "engine/limits.h"

namespace quire::engine {
namespace {

std::string dead_end(SequenceId id, std::int64_t position, const Guide& guide) {
  if (guide.problem().empty())
    return fmt::format("request {}: its guide allows no token after position {}", id.value, position);
  return fmt::format("request {}: its guide gave up after position {}: {}", id.value, position,
                     guide.problem());
}

}  // namespace

void EngineImpl::commit(std::vector<Output>& outputs) {
  const Clock::time_point wait_begin = Clock::now();
  parts_->events[committed_ & 1]->wait();
  waited_s_ += seconds_since(wait_begin);
  const Flight& flight = flights_[committed_ & 1];
  const Results& results = parts_->buffers->host_results(static_cast<std::int64_t>(committed_));
  row_results_.clear();
  for (std::size_t r = 0; r < flight.plan->rows.size(); ++r) {
    const bool finished = take_row(flight, r, results, outputs);
    const scheduler::PlanRow& row = flight.plan->rows[r];
    const bool spoiled = finished && !requests_.at(row.sequence).failure.empty();
    row_results_.push_back({row.yields_token ? 1 : 0, finished, spoiled});
  }
  observe(*flight.plan);
  for (const scheduler::Ended& ended : scheduler_->commit(row_results_)) report_end(ended, outputs);
  ++committed_;
  std::erase_if(retired_, [this](const auto& tokens) { return tokens.first <= committed_; });
}

// Steps follow each other on the device: this one began when the last one ended, or when it was launched.
void EngineImpl::observe(const scheduler::StepPlan& plan) {
  if (parts_->spec.target_step_us == 0) return;
  const Clock::time_point now = Clock::now();
  const Clock::time_point begin = std::max(last_commit_, launched_[plan.step & 1]);
  last_commit_ = now;
  scheduler_->observe({.decode_rows = plan.decode_rows,
                       .extend_tokens = plan.total_q - plan.decode_q,
                       .us = std::chrono::duration<double, std::micro>(now - begin).count()});
}

// True when the row's token ends its sequence. Rows of sequences that have ended meanwhile are void.
bool EngineImpl::take_row(const Flight& flight, std::size_t index, const Results& results,
                          std::vector<Output>& outputs) {
  const scheduler::PlanRow& row = flight.plan->rows[index];
  if (!scheduler_->is_live(row.sequence)) return false;
  Live& live = requests_.at(row.sequence);
  if (row.input == scheduler::Input::literal) stats_.prompt_tokens += row.query_count;
  if (scores(row, live) && !take_scores(row, live, results, output_of(row.sequence, outputs))) return true;
  return row.yields_token && take_token(flight, index, results, outputs);
}

bool EngineImpl::take_token(const Flight& flight, std::size_t index, const Results& results,
                            std::vector<Output>& outputs) {
  const SequenceId id = flight.plan->rows[index].sequence;
  Live& live = requests_.at(id);
  const std::int32_t at = flight.logit_of[index];
  const std::int32_t token = results.token[at];
  if (token < 0) {
    const std::int64_t position = std::ssize(live.tokens) - 1;
    live.failure = live.dead_end ? dead_end(id, position, *live.request.guide) : not_finite(id, position);
    return true;
  }
  if (live.completion_tokens() == 0) live.first_token = Clock::now();
  const std::vector<std::int32_t>& stops = live.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
  live.tokens.push_back(token);
  Output& output = output_of(id, outputs);
  output.tokens.push_back(token);
  if (live.completion_tokens() == 1) report_admission(live, output);
  ++stats_.output_tokens;
  if (live.request.logprobs >= 0) {
    if (output.logprobs.capacity() == 0) output.logprobs = spare_logprobs_.take();
    TokenLogprob& logprob = output.logprobs.emplace_back();
    logprob.top = spare_tops_.take();
    logprob.logprob = results.token_logprob[at];
    const std::int64_t top = std::int64_t{at} * flight.logprobs;
    for (std::int32_t t = 0; t < live.request.logprobs; ++t)
      logprob.top.emplace_back(results.token_top_id[top + t], results.token_top_logprob[top + t]);
  }
  if (live.request.guide == nullptr) return false;
  live.request.guide->accept(token);
  return live.request.guide->ended();
}

std::string EngineImpl::not_finite(SequenceId id, std::int64_t position) const {
  return fmt::format(
      "numerical error in request {}, step {}: the logits at position {} are not finite. Weights of {} hold "
      "NaN or infinite values, or overflow in {}: check the model's files",
      id.value, committed_, position, info_.architecture, to_string(parts_->spec.compute));
}

// False when a position has no distribution: the request ends there.
bool EngineImpl::take_scores(const scheduler::PlanRow& row, Live& live, const Results& results,
                             Output& output) const {
  const std::int32_t begin = first_logit_row(row);
  const std::int32_t top = live.request.score_top;
  for (std::int32_t i = 0; i < row.logits_count; ++i) {
    Scored scored;
    scored.logprob = results.score_logprob[begin + i];
    scored.argmax = results.score_argmax[begin + i];
    if (scored.argmax < 0) {
      live.failure = not_finite(row.sequence, row.logits_begin + i);
      return false;
    }
    // The lists of a block of kScoreRows follow each other densely from the block's first row on.
    const std::int32_t block = begin + i / kScoreRows * kScoreRows;
    const std::int64_t at = std::int64_t{block} * kMaxScoreTop + std::int64_t{i % kScoreRows} * top;
    for (std::int32_t t = 0; t < top; ++t)
      scored.top.emplace_back(results.score_top_id[at + t], results.score_top_logprob[at + t]);
    output.scored.push_back(std::move(scored));
  }
  return true;
}

// This step's output of the request; made when there is none.
Output& EngineImpl::output_of(SequenceId id, std::vector<Output>& outputs) {
  for (std::size_t i = first_output_; i < outputs.size(); ++i)
    if (outputs[i].id == id.value) return outputs[i];
  Output& output = outputs.emplace_back();
  output.id = id.value;
  output.tokens = spare_tokens_.take();
  return output;
}

void EngineImpl::report_end(const scheduler::Ended& ended, std::vector<Output>& outputs) {
  const Live& live = requests_.at(ended.sequence);
  const bool full = ended.reason == scheduler::EndReason::length;
  finish(ended.sequence,
         !live.failure.empty()  ? Finish::failed
         : !full                ? Finish::stop
         : live.ends_by_context ? Finish::context
                                : Finish::length,
         outputs);
}

void EngineImpl::report_cancelled(std::vector<Output>& outputs) {
  for (const SequenceId id : cancelled_) finish(id, Finish::cancelled, outputs);
  cancelled_.clear();
}

// Known from the first token on: with it, so that whoever ends the answer early knows it too, and at the end.
void EngineImpl::report_admission(const Live& live, Output& output) {
  output.cached_tokens = live.cached_tokens;
  output.cache_miss = kv::to_string(live.miss);
  const Clock::time_point ran = live.admitted == Clock::time_point{} ? Clock::now() : live.admitted;
  output.queued_s = seconds(ran - live.submitted);
}

void EngineImpl::finish(SequenceId id, Finish reason, std::vector<Output>& outputs) {
  Live& live = requests_.at(id);
  Output& output = output_of(id, outputs);
  output.finish = reason;
  output.error = std::move(live.failure);
  if (reason == Finish::failed && live.dead_end) output.guide_problem = live.request.guide->problem();
  output.prompt_tokens = live.prompt_tokens;
  output.completion_tokens = live.completion_tokens();
  report_admission(live, output);
  output.finish_s = seconds_since(live.submitted);
  const bool began = live.first_token != Clock::time_point{};
  output.first_token_s = began ? seconds(live.first_token - live.submitted) : 0.0;
  if (live.history_step > committed_) retired_.emplace_back(live.history_step, std::move(live.tokens));
  requests_.remove(id);
}

}  // namespace quire::engine
