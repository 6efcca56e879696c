#include "simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "base/check.h"
#include "kv/audit.h"
#include "simulate/clients.h"
#include "simulate/device.h"
#include "simulate/page_aligned.h"
#include "simulate/quantiles.h"

namespace quire::simulate {
namespace {

constexpr std::size_t kViolationsShown = 20;

Result<std::unique_ptr<kv::PagePool>> make_pool(const SimulationConfig& config) {
  if (config.page_tokens < 1 || config.page_tokens > 256)
    return bad_input(fmt::format("page size {} is outside 1 to 256 tokens", config.page_tokens));
  if (config.groups.empty() || config.groups.size() > kv::kMaxGroups)
    return bad_input(fmt::format("{} KV groups are outside 1 to {}", config.groups.size(), kv::kMaxGroups));
  // One byte per token and group: only the ratios matter.
  const std::vector<std::int64_t> strides(config.groups.size(), config.page_tokens);
  const std::int64_t bytes = config.kv_tokens * std::ssize(config.groups);
  kv::PoolConfig pool;
  QUIRE_TRY(plan, kv::plan_slabs(strides, bytes));
  pool.plan = plan;
  pool.slabs = bytes / plan.slab_bytes;
  for (const GroupSpec& group : config.groups)
    pool.groups.push_back({group.name, {group.keep, group.width, config.page_tokens}});
  return kv::PagePool::create(std::move(pool));
}

// Whether some sequence can run in a cache of so many tokens.
bool holds_one(SimulationConfig config, std::int64_t kv_tokens) {
  config.kv_tokens = kv_tokens;
  const Result<std::unique_ptr<kv::PagePool>> pool = make_pool(config);
  return pool.ok() && scheduler::Scheduler::create({1, config.scheduler.chunk_tokens, 1, 1}, **pool).ok();
}

// Pool and scheduler speak of slabs and bytes, which nobody here gave.
Error too_few_tokens(const SimulationConfig& config) {
  std::int64_t low = std::max<std::int64_t>(1, config.kv_tokens);
  std::int64_t high = 2 * low;
  while (!holds_one(config, high)) high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (holds_one(config, middle) ? high : low) = middle;
  }
  return bad_input(fmt::format(
      "a KV cache of {} tokens is too small for pages of {} tokens, {} KV groups and chunks of {} tokens: "
      "use --kv-tokens {} or more",
      config.kv_tokens, config.page_tokens, config.groups.size(), config.scheduler.chunk_tokens, high));
}

class Loop {
 public:
  Loop(const Trace& trace, const SimulationConfig& config, std::unique_ptr<kv::PagePool> pool,
       std::unique_ptr<scheduler::Scheduler> scheduler)
      : trace_(trace),
        config_(config),
        clients_(trace),
        pool_(std::move(pool)),
        scheduler_(std::move(scheduler)),
        device_(*pool_, scheduler_->table()) {
    bool all = true;
    for (int g = 0; g < pool_->groups(); ++g) {
      rules_.push_back(pool_->group(GroupId{static_cast<std::uint32_t>(g)}).rule);
      all = all && rules_.back().keep == kv::Keep::all;
    }
    if (!all) return;
    // Groups that all keep everything share the pool evenly.
    const std::int64_t pages = pool_->plan().pages_per_slab[0] * pool_->slabs() / pool_->groups() - 1;
    aligned_.emplace(config.page_tokens, pages);
    report_.aligned_hit_tokens = 0;
  }

  Report run() {
    report_.requests = std::ssize(trace_.requests);
    now_ = trace_.requests.empty() ? 0.0 : trace_.requests.front().arrival_s;
    const double begin = now_;
    while (report_.violations.empty() && (next_ < trace_.requests.size() || scheduler_->has_work())) step();
    if (report_.violations.empty()) check(scheduler_->audit());
    report_.seconds = now_ - begin;
    report_.retractions = scheduler_->retractions();
    for (int g = 0; g < pool_->groups(); ++g)
      report_.pages_peak.push_back(pool_->peak(GroupId{static_cast<std::uint32_t>(g)}));
    report_.waiting_s = {waiting_.quantile(0.5), waiting_.quantile(0.99)};
    report_.ttft_s = {ttft_.quantile(0.5), ttft_.quantile(0.99)};
    report_.itl_s = {itl_.quantile(0.5), itl_.quantile(0.99)};
    return std::move(report_);
  }

 private:
  struct Flight {
    const scheduler::StepPlan* plan = nullptr;
    double end_s = 0.0;
    double seconds = 0.0;
  };
  struct Due {
    std::int64_t step = 0;
    SequenceId sequence;
    friend auto operator<=>(const Due&, const Due&) = default;
  };
  using DueQueue = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

  // One turn of the engine's loop.
  void step() {
    submit_arrived();
    abort_due();
    refuse_due();
    const scheduler::StepPlan* plan = scheduler_->plan();
    if (plan != nullptr) launch(*plan);
    const int ahead = plan != nullptr && config_.overlap ? 1 : 0;
    const bool idle = plan == nullptr && scheduler_->in_flight() == 0;
    while (scheduler_->in_flight() > ahead && report_.violations.empty()) commit();
    if (!idle || !report_.violations.empty()) return;
    if (scheduler_->has_work()) return check({"requests wait, nothing runs and no step can be made"});
    if (next_ < trace_.requests.size()) now_ = std::max(now_, trace_.requests[next_].arrival_s);
  }

  void submit_arrived() {
    for (; next_ < trace_.requests.size() && trace_.requests[next_].arrival_s <= now_; ++next_) {
      const TraceRequest& request = trace_.requests[next_];
      const SequenceId sequence = Clients::sequence_of(next_);
      scheduler::RequestInfo info;
      info.sequence = sequence;
      info.prompt_tokens = request.prompt_tokens;
      info.max_new_tokens = request.max_tokens;
      info.priority = request.priority;
      info.space = space_of(request.space);
      info.tokens = clients_.open(sequence);
      if (!scheduler_->submit(info).ok()) {
        clients_.close(sequence, ClientState::refused);
        ++report_.refused;
        continue;
      }
      if (request.faults.abort_after != kNever)
        aborts_.push({report_.steps + request.faults.abort_after, sequence});
      if (request.faults.refuse_after != kNever)
        refusals_.push({report_.steps + request.faults.refuse_after, sequence});
    }
  }

  const kv::NamespaceKey* space_of(std::uint32_t space) {
    const auto [at, fresh] = spaces_.try_emplace(space);
    if (fresh) at->second.salt = std::to_string(space);
    return &at->second;
  }

  void refuse_due() {
    for (; !refusals_.empty() && refusals_.top().step <= report_.steps; refusals_.pop()) {
      scheduler_->refuse_next_promise();
      ++report_.refusals_injected;
    }
  }

  void abort_due() {
    for (; !aborts_.empty() && aborts_.top().step <= report_.steps; aborts_.pop())
      if (clients_.of(aborts_.top().sequence).state == ClientState::live) abort(aborts_.top().sequence);
  }

  void abort(SequenceId sequence) {
    if (!scheduler_->cancel(sequence))
      return check({fmt::format("sequence {} is live and cannot be cancelled", sequence.value)});
    release_aligned(sequence);
    clients_.close(sequence, ClientState::aborted);
    ++report_.aborted;
  }

  void launch(const scheduler::StepPlan& plan) {
    if (config_.sabotage) config_.sabotage(*pool_, plan);
    check(kv::check_step(*pool_, scheduler_->table(), plan.updates));
    const bool whole = config_.audit_every > 0 && (report_.steps + 1) % config_.audit_every == 0;
    if (whole) check(scheduler_->audit());
    note_admissions(plan);
    run_rows(plan, whole);
    const double seconds = config_.device.seconds(load_of(plan, rules_));
    device_free_ = std::max(device_free_, now_) + seconds;
    report_.busy_s += seconds;
    flights_[plan.step % flights_.size()] = {&plan, device_free_, seconds};
  }

  void note_admissions(const scheduler::StepPlan& plan) {
    for (const SequenceId sequence : plan.retracted) release_aligned(sequence);
    for (const scheduler::Admission& admission : plan.admitted) {
      const TraceRequest& request = clients_.request(admission.sequence);
      const std::int32_t literals = request.prompt_tokens + clients_.of(admission.sequence).outputs;
      const std::int32_t aligned =
          aligned_ ? aligned_->admit(admission.sequence, clients_.stamps(admission.sequence, literals)) : 0;
      if (admission.resumed) continue;
      waiting_.add(now_ - request.arrival_s);
      report_.prompt_tokens += request.prompt_tokens;
      report_.hit_tokens += admission.cached_tokens;
      report_.aligned_hit_tokens += aligned;
      ++report_.why_miss[static_cast<std::size_t>(admission.miss.why)];
    }
    report_.copies += std::ssize(plan.copies);
  }

  // What is in the cache of a sequence that leaves: all but its last token; of an unfinished prompt nothing
  // that is not published already.
  void release_aligned(SequenceId sequence) {
    if (!aligned_) return;
    const std::int32_t outputs = clients_.of(sequence).outputs;
    const std::int32_t keys = outputs == 0 ? 0 : clients_.request(sequence).prompt_tokens + outputs - 1;
    aligned_->release(sequence, clients_.stamps(sequence, keys));
  }

  void run_rows(const scheduler::StepPlan& plan, bool whole) {
    device_.begin_step(plan);
    std::vector<std::string> wrong;
    for (const scheduler::PlanRow& row : plan.rows) {
      if (row.kind == scheduler::RowKind::extend) report_.computed_tokens += row.query_count;
      const Stamps stamps = clients_.stamps(row.sequence, row.visible.tokens);
      device_.run_row(row, stamps, whole, wrong);
      if (!aligned_) continue;
      if (row.kind == scheduler::RowKind::extend) {
        aligned_->publish(row.sequence, stamps);
      } else if (row.visible.tokens % config_.page_tokens == 0) {
        aligned_->grow(row.sequence, row.visible.tokens);
      }
    }
    check(std::move(wrong));
  }

  void commit() {
    const Flight& flight = flights_[committed_ % flights_.size()];
    now_ = std::max(now_, flight.end_s);
    results_.clear();
    for (const scheduler::PlanRow& row : flight.plan->rows) results_.push_back(take_row(row));
    scheduler_->observe(
        {flight.plan->decode_rows, flight.plan->total_q - flight.plan->decode_q, flight.seconds * 1e6});
    for (const scheduler::Ended& ended : scheduler_->commit(results_)) {
      release_aligned(ended.sequence);
      clients_.close(ended.sequence, ClientState::finished);
      ++report_.finished;
    }
    for (const SequenceId sequence : dropped_)
      if (clients_.of(sequence).state == ClientState::live) abort(sequence);
    dropped_.clear();
    ++committed_;
    ++report_.steps;
  }

  scheduler::RowResult take_row(const scheduler::PlanRow& row) {
    Client& client = clients_.of(row.sequence);
    if (client.state != ClientState::live || !row.yields_token) return {};
    const TraceRequest& request = clients_.request(row.sequence);
    if (row.output_index != client.outputs)
      check({fmt::format("sequence {} gives output {}, {} are known", row.sequence.value, row.output_index,
                         client.outputs)});
    clients_.add_output(row.sequence);
    ++report_.output_tokens;
    if (client.outputs == 1) {
      client.first_token_s = now_;
      ttft_.add(now_ - request.arrival_s);
    } else {
      itl_.add(now_ - client.last_token_s);
    }
    client.last_token_s = now_;
    const double rate = request.faults.read_tokens_s;
    if (rate > 0 && client.outputs - (now_ - client.first_token_s) * rate > config_.client_buffer_tokens)
      dropped_.push_back(row.sequence);
    return {1, client.outputs == request.output_tokens && client.outputs < request.max_tokens};
  }

  void check(std::vector<std::string> violations) {
    if (violations.empty() || !report_.violations.empty()) return;
    if (violations.size() > kViolationsShown) violations.resize(kViolationsShown);
    report_.violations = std::move(violations);
    report_.violation_step = static_cast<std::uint64_t>(report_.steps);
    report_.requests_until_violation = next_;
  }

  const Trace& trace_;
  const SimulationConfig& config_;
  Clients clients_;  // and spaces_: the scheduler reads them as long as it lives
  std::map<std::uint32_t, kv::NamespaceKey> spaces_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  StampedDevice device_;
  std::vector<kv::GroupRule> rules_;
  Report report_;
  std::size_t next_ = 0;  // request of the trace
  double now_ = 0.0;
  double device_free_ = 0.0;  // when it has done what was launched
  std::array<Flight, scheduler::kMaxInFlight> flights_;
  std::uint64_t committed_ = 0;
  std::vector<scheduler::RowResult> results_;
  std::vector<SequenceId> dropped_;  // slow clients to drop after this commit
  DueQueue aborts_;
  DueQueue refusals_;
  std::optional<PageAligned> aligned_;
  Histogram waiting_;
  Histogram ttft_;
  Histogram itl_;
};

}  // namespace

Result<Report> simulate(const Trace& trace, const SimulationConfig& config) {
  Result<std::unique_ptr<kv::PagePool>> pool = make_pool(config);
  if (!pool.ok()) return pool.error().code == Code::no_resources ? too_few_tokens(config) : pool.error();
  Result<std::unique_ptr<scheduler::Scheduler>> scheduler =
      scheduler::Scheduler::create(config.scheduler, **pool);
  if (!scheduler.ok()) {
    const bool small = scheduler.error().code == Code::no_resources && !holds_one(config, config.kv_tokens);
    return small ? too_few_tokens(config) : scheduler.error();
  }
  // The scheduler refers to the pool, which outlives it as a member of the loop.
  return Loop(trace, config, std::move(*pool), std::move(*scheduler)).run();
}

}  // namespace quire::simulate
