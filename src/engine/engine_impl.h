// EngineImpl: the loop where scheduler and device meet. step() plans and launches step n + 1, then takes in
// the results of step n, which ran meanwhile: the host works in the device's shadow. Without overlap it waits
// for the step it just launched.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/parts.h"
#include "engine/requests.h"
#include "engine/spares.h"
#include "engine/upload.h"
#include "kv/page_pool.h"
#include "quire/engine.h"
#include "scheduler/scheduler.h"

namespace quire::engine {

class EngineImpl final : public Engine {
 public:
  // table: as in assemble().
  static Result<std::unique_ptr<EngineImpl>> open(const std::string& model, const Options& options,
                                                  std::span<const attention::Backend> table = {});
  ~EngineImpl() override;

  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override;
  Result<RequestId> submit(Request request) override;
  Status check(const Request& request) const override { return check_request(request, request_limits_); }
  Queue queue() const override;
  void cancel(RequestId id) override;
  bool step(std::vector<Output>& outputs) override;
  void recycle(std::vector<Output>& outputs) override;
  void page_map(PageMap& map) const override;
  KvEvents kv_events(std::uint64_t since) const override;
  void clear_prefix_cache() override { scheduler_->clear_cache(); }
  std::vector<std::string> audit() override;

  // For `bench step`: prompt chunks advance lengths and tables but compute nothing, so a long context costs
  // no prefill. What such a sequence samples first is token 0. A build that checks computes them all the
  // same: its memory is no number until it is written.
  void pretend_prefill(bool pretend) { pretend_prefill_ = pretend && !kPoison; }
  // What a decode step must read of the weights: all but an embedding table that is only looked up.
  std::int64_t weight_bytes() const;
  std::int64_t kv_bytes_per_token() const;
  std::int32_t chunk_tokens() const { return parts_->spec.chunk_tokens; }
  const RequestLimits& request_limits() const { return request_limits_; }

 private:
  EngineImpl() = default;
  Status make_scheduler();
  void fill_info(double load_s);

  // engine.cc
  void launch(const scheduler::StepPlan& plan);
  void enqueue_sampling(const Flight& flight);
  void enqueue_logprobs(const Flight& flight);
  void enqueue_scores(const Flight& flight);
  void enqueue_copy_back(const Flight& flight);
  void poison_freed();
  void note_admissions(const scheduler::StepPlan& plan);
  void enqueue_page_copies(const scheduler::StepPlan& plan);
  void expire(std::vector<Output>& outputs);
  void check_step(const scheduler::StepPlan& plan);
  void check_idle();

  // commit.cc
  void commit(std::vector<Output>& outputs);
  bool take_row(const Flight& flight, std::size_t index, const Results& results,
                std::vector<Output>& outputs);
  bool take_token(const Flight& flight, std::size_t index, const Results& results,
                  std::vector<Output>& outputs);
  bool take_scores(const scheduler::PlanRow& row, Live& live, const Results& results, Output& output) const;
  std::string not_finite(SequenceId id, std::int64_t position) const;
  void report_end(const scheduler::Ended& ended, std::vector<Output>& outputs);
  void report_cancelled(std::vector<Output>& outputs);
  static void report_admission(const Live& live, Output& output);
  void finish(SequenceId id, Finish reason, std::vector<Output>& outputs);
  void observe(const scheduler::StepPlan& plan);
  Output& output_of(SequenceId id, std::vector<Output>& outputs);

  EngineInfo info_;
  std::unique_ptr<EngineParts> parts_;
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  Requests requests_;
  RequestLimits request_limits_;
  std::array<Flight, 2> flights_;
  std::vector<scheduler::RowResult> row_results_;
  std::vector<SequenceId> cancelled_;
  std::array<std::int64_t, kv::kMissCodes> why_miss_ = {};  // requests, by kv::Miss
  Clock::time_point opened_ = Clock::now();
  Clock::time_point last_commit_;
  std::array<Clock::time_point, 2> launched_;  // of the steps in flight
  // Tokens of requests that ended while their upload was in flight, with the step to wait for.
  std::vector<std::pair<std::uint64_t, std::vector<std::int32_t>>> retired_;
  // From recycle(), for the outputs of decode steps. (Scores of prompts are made anew: they come with prompt
  // chunks, at most one list of kMaxScoreTop for each of their tokens.)
  Spares<std::int32_t> spare_tokens_;
  Spares<TokenLogprob> spare_logprobs_;
  Spares<std::pair<std::int32_t, float>> spare_tops_;
  std::size_t first_output_ = 0;  // of this step, in the caller's vector
  std::uint32_t next_id_ = 1;
  std::uint64_t committed_ = 0;  // steps taken in
  bool pretend_prefill_ = false;
  double waited_s_ = 0.0;  // for the device, in commit()
  EngineStats stats_;
};

}  // namespace quire::engine
