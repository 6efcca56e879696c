#include "simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "base/check.h"
#include "kv/audit.h"
#include "simulate/clients.h"
#include "simulate/device.h"
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

class Loop {
 public:
  Loop(const Trace& trace, const SimulationConfig& config, std::unique_ptr<kv::PagePool> pool,
       std::unique_ptr<scheduler::Scheduler> scheduler)
      : trace_(trace),
        config_(config),
        pool_(std::move(pool)),
        scheduler_(std::move(scheduler)),
        device_(*pool_, scheduler_->table()),
        clients_(trace) {
    for (int g = 0; g < pool_->groups(); ++g)
      rules_.push_back(pool_->group(GroupId{static_cast<std::uint32_t>(g)}).rule);
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
      if (!scheduler_->submit(info).ok()) {
        clients_.of(sequence).state = ClientState::refused;
        ++report_.refused;
        continue;
      }
      clients_.open(sequence);
      if (request.faults.abort_after != kNever)
        aborts_.push({report_.steps + request.faults.abort_after, sequence});
    }
  }

  void abort_due() {
    for (; !aborts_.empty() && aborts_.top().step <= report_.steps; aborts_.pop())
      if (clients_.of(aborts_.top().sequence).state == ClientState::live) abort(aborts_.top().sequence);
  }

  void abort(SequenceId sequence) {
    if (!scheduler_->cancel(sequence))
      return check({fmt::format("sequence {} is live and cannot be cancelled", sequence.value)});
    clients_.close(sequence, ClientState::aborted);
    ++report_.aborted;
  }

  void launch(const scheduler::StepPlan& plan) {
    if (config_.sabotage) config_.sabotage(*pool_, plan);
    check(kv::check_step(*pool_, scheduler_->table(), plan.updates));
    const bool whole = config_.audit_every > 0 && (report_.steps + 1) % config_.audit_every == 0;
    if (whole) check(scheduler_->audit());
    device_.begin_step(plan);
    std::vector<std::string> wrong;
    for (const scheduler::PlanRow& row : plan.rows) {
      Client& client = clients_.of(row.sequence);
      if (client.first_row_s < 0) {
        client.first_row_s = now_;
        waiting_.add(now_ - clients_.request(row.sequence).arrival_s);
        report_.prompt_tokens += clients_.request(row.sequence).prompt_tokens;
      }
      if (row.kind == scheduler::RowKind::extend) report_.computed_tokens += row.query_count;
      device_.run_row(row, clients_.stamps(row.sequence, row.visible.tokens), whole, wrong);
    }
    check(std::move(wrong));
    const double seconds = config_.device.seconds(load_of(plan, rules_));
    now_ += config_.host_s;
    device_free_ = std::max(device_free_, now_) + seconds;
    report_.busy_s += seconds;
    flights_[plan.step % flights_.size()] = {&plan, device_free_};
  }

  void commit() {
    const Flight& flight = flights_[committed_ % flights_.size()];
    now_ = std::max(now_, flight.end_s);
    results_.clear();
    for (const scheduler::PlanRow& row : flight.plan->rows) results_.push_back(take_row(row));
    for (const scheduler::Ended& ended : scheduler_->commit(results_)) {
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
    ++client.outputs;
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
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  StampedDevice device_;
  Clients clients_;
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
  Histogram waiting_;
  Histogram ttft_;
  Histogram itl_;
};

}  // namespace

Result<Report> simulate(const Trace& trace, const SimulationConfig& config) {
  QUIRE_TRY(pool, make_pool(config));
  QUIRE_TRY(scheduler, scheduler::Scheduler::create(config.scheduler, *pool));
  // The scheduler refers to the pool, which outlives it as a member of the loop.
  return Loop(trace, config, std::move(pool), std::move(scheduler)).run();
}

}  // namespace quire::simulate
