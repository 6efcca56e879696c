#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "engine/limits.h"
#include "kv/audit.h"

namespace quire::engine {
namespace {

// Steps between full audits, in builds that check: they walk every page and every row.
constexpr std::uint64_t kAuditEvery = 16;

}  // namespace

// ---- the loop ------------------------------------------------------------------------------------------

bool EngineImpl::step(std::vector<Output>& outputs) {
  const Clock::time_point begin = Clock::now();
  const double waited_before = waited_s_;
  first_output_ = outputs.size();
  report_cancelled(outputs);
  expire(outputs);
  const scheduler::StepPlan* plan = scheduler_->plan();
  if (plan != nullptr) launch(*plan);
  const int ahead = plan != nullptr && parts_->spec.overlap ? 1 : 0;
  bool any = plan != nullptr || outputs.size() > first_output_;
  for (; scheduler_->in_flight() > ahead; any = true) commit(outputs);
  if (any && !scheduler_->has_work()) check_idle();
  stats_.host_step_s += seconds(Clock::now() - begin) - (waited_s_ - waited_before);
  return any;
}

void EngineImpl::launch(const scheduler::StepPlan& plan) {
  Flight& flight = flights_[plan.step & 1];
  check_step(plan);
  note_admissions(plan);
  launched_[plan.step & 1] = Clock::now();
  parts_->stream->begin_span();
  poison_freed();
  enqueue_page_copies(plan);
  upload_step(plan, *parts_, requests_, flight);
  flight.launch.eager = parts_->observer != nullptr && parts_->observer->begin_step(flight, requests_);
  const bool pretend = pretend_prefill_ && plan.extend_rows > 0;
  if (pretend) {
    parts_->executor->advance_only(flight.launch);
    parts_->stream->fill(parts_->buffers->results.token, 0, flight.launch.logit_rows * 4);
  } else {
    stats_.replayed_steps += parts_->executor->forward(flight.launch) ? 1 : 0;
    if (flight.guided) upload_masks(*parts_, requests_, flight);
    enqueue_sampling(flight);
    enqueue_logprobs(flight);
    enqueue_scores(flight);
  }
  parts_->ops->end_step({parts_->buffers->state, parts_->buffers->upload.rows,
                         flight.launch.decode_rows + flight.launch.extend_rows},
                        *parts_->stream);
  enqueue_copy_back(flight);
  parts_->stream->end_span();
  parts_->stream->record(*parts_->events[plan.step & 1]);
  if (flight.launch.eager) parts_->observer->end_step(flight, *parts_);
  ++stats_.steps;
}

void EngineImpl::enqueue_sampling(const Flight& flight) {
  StepBuffers& buffers = *parts_->buffers;
  if (flight.launch.logit_rows == 0) return;
  ops::Sample args;
  args.state = buffers.state;
  args.logits = buffers.logits.rows_slice(0, flight.launch.logit_rows);
  args.row_index = buffers.upload.logit_row;
  args.step_rows = buffers.upload.rows;
  args.params = buffers.params;
  args.bias = buffers.bias;
  args.out_token = buffers.results.token;
  if (flight.masks > 0) {
    args.mask_row = buffers.upload.mask_row;
    args.masks = buffers.upload.masks;
  }
  parts_->ops->sample(args, *parts_->stream);
}

// By the operation that scores prompts, of the logits that sampling left as they were: the same bits.
void EngineImpl::enqueue_logprobs(const Flight& flight) {
  StepBuffers& buffers = *parts_->buffers;
  if (flight.logprobs < 0) return;
  ops::Score args;
  args.logits = buffers.logits.rows_slice(0, flight.launch.logit_rows);
  args.target = buffers.results.token;
  args.logprob = buffers.results.token_logprob;
  args.top_n = flight.logprobs;
  args.top_id = buffers.results.token_top_id;
  args.top_logprob = buffers.results.token_top_logprob;
  parts_->ops->score(args, *parts_->stream);
}

// In blocks of kScoreRows: the logits of a whole chunk would be larger than everything else.
void EngineImpl::enqueue_scores(const Flight& flight) {
  StepBuffers& buffers = *parts_->buffers;
  if (flight.scored_end == 0) return;
  for (const scheduler::PlanRow& row : flight.plan->rows) {
    const Live& live = requests_.at(row.sequence);
    if (!scores(row, live)) continue;
    const std::int32_t end = first_logit_row(row) + row.logits_count;
    for (std::int32_t at = first_logit_row(row); at < end; at += kScoreRows) {
      const std::int32_t rows = std::min(kScoreRows, end - at);
      parts_->executor->logits_of(at, rows);
      const std::int64_t top = std::int64_t{at} * kMaxScoreTop;
      ops::Score args;
      args.logits = buffers.logits.rows_slice(0, rows);
      args.target = buffers.upload.score_target + at;
      args.logprob = buffers.results.score_logprob + at;
      args.argmax = buffers.results.score_argmax + at;
      args.top_n = live.request.score_top;
      args.top_id = buffers.results.score_top_id + top;
      args.top_logprob = buffers.results.score_top_logprob + top;
      parts_->ops->score(args, *parts_->stream);
    }
  }
}

void EngineImpl::enqueue_copy_back(const Flight& flight) {
  const Results& from = parts_->buffers->results;
  Results& to = parts_->buffers->host_results(static_cast<std::int64_t>(flight.plan->step));
  const auto copy = [this](void* target, const void* source, std::int64_t count) {
    constexpr std::int64_t kWord = 4;  // every result is an int32 or a float
    if (count > 0) parts_->stream->copy(target, source, count * kWord);
  };
  copy(to.token, from.token, flight.launch.logit_rows);
  if (flight.logprobs >= 0) {
    copy(to.token_logprob, from.token_logprob, flight.launch.logit_rows);
    const std::int64_t top = std::int64_t{flight.launch.logit_rows} * flight.logprobs;
    copy(to.token_top_id, from.token_top_id, top);
    copy(to.token_top_logprob, from.token_top_logprob, top);
  }
  copy(to.score_logprob, from.score_logprob, flight.scored_end);
  copy(to.score_argmax, from.score_argmax, flight.scored_end);
  copy(to.score_top_id, from.score_top_id, flight.score_top_end);
  copy(to.score_top_logprob, from.score_top_logprob, flight.score_top_end);
}

void EngineImpl::note_admissions(const scheduler::StepPlan& plan) {
  for (const scheduler::Admission& admission : plan.admitted) {
    Live& live = requests_.at(admission.sequence);
    stats_.cached_tokens += admission.cached_tokens;
    stats_.looked_up_tokens += std::ssize(live.tokens);
    if (admission.resumed) continue;
    live.admitted = Clock::now();
    live.cached_tokens = admission.cached_tokens;
    live.miss = admission.miss;
    ++why_miss_[static_cast<std::size_t>(admission.miss.why)];
  }
}

// Before everything else of the step, in order.
void EngineImpl::enqueue_page_copies(const scheduler::StepPlan& plan) {
  for (const scheduler::PageCopy& copy : plan.copies) {
    const std::vector<ops::PageCopyLayer>& layers = parts_->copy_layers[copy.group.value];
    parts_->ops->page_copy({.layers = layers.data(),
                            .layer_count = static_cast<std::int32_t>(layers.size()),
                            .from = copy.from.value,
                            .to = copy.to.value,
                            .tokens = copy.tokens},
                           *parts_->stream);
  }
}

void EngineImpl::expire(std::vector<Output>& outputs) {
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - opened_);
  for (const SequenceId id : scheduler_->expire(now.count())) finish(id, Finish::deadline, outputs);
}

// A freed page holds NaN until its next owner writes it, in builds that check: whoever still reads it shows.
void EngineImpl::poison_freed() {
  for (const kv::GroupPage& freed : pool_->take_freed()) {
    const std::int64_t stride = parts_->kv.slabs.page_strides[freed.group.value];
    char* page = static_cast<char*>(parts_->arena->base()) + std::int64_t{freed.page.value} * stride;
    parts_->stream->fill(page, 0xff, stride);
  }
}

// ---- requests ------------------------------------------------------------------------------------------

Result<RequestId> EngineImpl::submit(Request request) {
  QUIRE_TRY_STATUS(check(request));
  if (requests_.size() >= static_cast<std::size_t>(kMaxWaiting))
    return no_resources(
        fmt::format("{} requests are submitted and not finished, the limit is {}: wait until one is finished",
                    requests_.size(), kMaxWaiting));
  const SequenceId id{next_id_};
  const Live& live = requests_.add(id, std::move(request), request_limits_);
  scheduler::RequestInfo info{.sequence = id,
                              .prompt_tokens = live.prompt_tokens,
                              .max_new_tokens = live.max_new_tokens,
                              .score = live.request.score,
                              .answer = live.request.answer,
                              .guided = live.request.guide != nullptr,
                              .tokens = live.tokens.data(),
                              .priority = live.request.priority};
  const kv::NamespaceKey space{.salt = live.request.cache_salt};
  info.space = &space;
  if (live.request.deadline_s > 0.0) {
    const std::chrono::duration<double> deadline =
        live.submitted - opened_ + std::chrono::duration<double>(live.request.deadline_s);
    info.deadline_us = std::max<std::int64_t>(1, static_cast<std::int64_t>(deadline.count() * 1e6));
  }
  const Status queued = scheduler_->submit(info);
  if (!queued.ok()) {
    requests_.remove(id);
    return queued.error();
  }
  ++next_id_;
  return RequestId{id.value};
}

Queue EngineImpl::queue() const {
  const std::int64_t unknown = kMaxWaiting - static_cast<std::int64_t>(requests_.size());
  const std::int64_t room = std::min<std::int64_t>(unknown, parts_->spec.max_waiting - scheduler_->waiting());
  return {.waiting = scheduler_->waiting(),
          .room = static_cast<std::int32_t>(std::max<std::int64_t>(0, room)),
          .running = scheduler_->running()};
}

void EngineImpl::cancel(RequestId id) {
  if (id == 0 || id >= next_id_) return;
  const SequenceId sequence{static_cast<std::uint32_t>(id)};
  if (scheduler_->cancel(sequence)) cancelled_.push_back(sequence);
}

void EngineImpl::recycle(std::vector<Output>& outputs) {
  for (Output& output : outputs) {
    spare_tokens_.keep(std::move(output.tokens));
    for (TokenLogprob& logprob : output.logprobs) spare_tops_.keep(std::move(logprob.top));
    spare_logprobs_.keep(std::move(output.logprobs));
  }
  outputs.clear();
}

// ---- reports -------------------------------------------------------------------------------------------

std::vector<std::string> EngineImpl::audit() { return scheduler_->audit(); }

// The cheap part of conservation, in every build: the pool's counters and what this step changed. Builds that
// check have the whole of it now and then, with steps in flight.
void EngineImpl::check_step(const scheduler::StepPlan& plan) {
  std::vector<std::string> violations = kv::check_step(*pool_, scheduler_->table(), plan.updates);
  if (kPoison && violations.empty() && plan.step % kAuditEvery == 0) violations = audit();
  QUIRE_CHECK(violations.empty(), "step {}: {} violations; first: {}", plan.step, violations.size(),
              violations[0]);
}

// Conservation at idle: what a request left behind is a bug that names itself.
void EngineImpl::check_idle() {
  const std::vector<std::string> violations = audit();
  QUIRE_CHECK(violations.empty() && requests_.size() == 0, "{} violations, {} requests at idle; first: {}",
              violations.size(), requests_.size(), violations.empty() ? "none" : violations[0]);
}

}  // namespace quire::engine

namespace quire {

Result<std::unique_ptr<Engine>> Engine::open(const std::string& model, const Options& options) {
  // The standard library tells of a full machine by throwing; our callers get a Status.
  try {
    auto opened = engine::EngineImpl::open(model, options);
    if (!opened.ok()) return opened.error();
    return std::unique_ptr<Engine>(std::move(*opened));
  } catch (const std::system_error& error) {
    return no_resources(
        fmt::format("the system gives no more threads ({}): use fewer --threads, or raise the limits of this "
                    "process (ulimit -u, ulimit -v)",
                    error.code().message()));
  } catch (const std::bad_alloc&) {
    return no_resources(
        "memory ran out while the model was loaded: use a smaller --kv-memory or --max-running");
  }
}

std::string_view to_string(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "none";
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::context:
      return "context";
    case Finish::cancelled:
      return "cancelled";
    case Finish::failed:
      return "failed";
    case Finish::deadline:
      return "deadline";
  }
  return "none";
}

void Engine::recycle(std::vector<Output>& outputs) { outputs.clear(); }
KvEvents Engine::kv_events(std::uint64_t since) const { return {.first = since, .next = since}; }
void Engine::clear_prefix_cache() {}

}  // namespace quire
