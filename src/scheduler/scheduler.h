// Scheduler: which sequences compute how many tokens in the next step, and the pages for it. Continuous
// batching, first come first served: decode rows first, then prompt chunks of at most chunk_tokens together.
// Pure host code over kv/: ids and counts, no tensor, no device, no clock. Deterministic.
//
// The loop: plan(), run it, commit() what it gave. One step may be planned ahead: plan, plan, commit, plan,
// commit, ... A plan that is made before the step ahead is committed takes each of its rows to succeed; when
// that step then ends a sequence, the row already planned for it is void: its result is ignored, and slot and
// pages come back when the last plan that names them is committed.
//
// Pages. Admission promises, for all groups at once or not at all, the pages of the whole prompt and of one
// token more (windows: window + chunk + one page): an admitted prompt always gets through. Decoding takes a
// page when a length crosses a page border. When there is none, the youngest running sequence is retracted:
// it loses its pages, waits in its old place of the queue and computes its tokens again. A request that
// cannot fit alone is refused by submit(), so the oldest one always gets on.
// Pages freed here may be written again by the next plan: steps run in order on one stream.
//
// A steady decode step allocates nothing. Thread rule: one thread at a time. The pool outlives the scheduler.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/block_table.h"
#include "kv/page_pool.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace quire::scheduler {

struct SchedulerConfig {
  std::int32_t max_running = 1;   // sequences with a slot; slots are 1 .. max_running
  std::int32_t chunk_tokens = 1;  // most prompt tokens of one step
  std::int32_t max_context = 1;   // tokens of prompt and output of one sequence
  std::int32_t max_waiting = 1;   // queue length; submit() refuses more
};

inline constexpr int kMaxInFlight = 2;  // plans that are not committed

class Scheduler {
 public:
  // Refuses limits that contradict each other.
  static Result<std::unique_ptr<Scheduler>> create(const SchedulerConfig& config, kv::PagePool& pool);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request, or refuses it with the numbers when it can never run.
  Status submit(const RequestInfo& info);
  // Ends a sequence; false when it has ended already. commit() does not report it.
  bool cancel(SequenceId sequence);

  // The next step, or null when there is nothing to run before the steps in flight are committed (or at all:
  // has_work()). Valid until the plan() after next. REQUIRES in_flight() < kMaxInFlight.
  const StepPlan* plan();
  // Takes in the results of the oldest plan in flight, one per row, in order. Returns the sequences that
  // ended with it; valid until the next call.
  std::span<const Ended> commit(std::span<const RowResult> results);

  // Whether results of the sequence's rows still count.
  bool is_live(SequenceId sequence) const;
  // Sequences that wait or run, or void rows whose step is in flight.
  bool has_work() const { return live_ > 0 || in_flight_ > 0; }
  int in_flight() const { return in_flight_; }
  std::int32_t running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  std::int64_t retractions() const { return retractions_; }
  // The most tokens of KV that one sequence can have in this pool.
  std::int32_t most_kv_tokens() const { return most_kv_tokens_; }
  const kv::BlockTable& table() const { return table_; }

  // The conservation checker over pool, table and sequences; at idle also that nothing is held. A list of
  // violations, empty when all is well.
  std::vector<std::string> audit() const;

 private:
  struct InFlight {
    StepPlan plan;
    std::vector<std::uint32_t> records;  // per row: index into records_
  };

  Scheduler(const SchedulerConfig& config, kv::PagePool& pool, std::int32_t most_kv_tokens);

  // scheduler.cc
  void plan_decodes(InFlight& step);
  void plan_extends(InFlight& step);
  void admit(InFlight& step);
  bool admit_one(InFlight& step, std::uint32_t record);
  void plan_chunk(InFlight& step, std::uint32_t record);
  PlanRow& add_row(InFlight& step, std::uint32_t record, RowKind kind, std::int32_t count);
  void close_row(InFlight& step);
  void end(std::uint32_t record);
  void commit_row(const PlanRow& row, std::uint32_t record, const RowResult& result);

  // pages.cc
  kv::PageCounts most_pages(std::int32_t kv_tokens) const;
  bool cover(Sequence& sequence, std::int32_t end);
  bool cover_or_retract(InFlight& step, std::uint32_t record, std::int32_t end);
  void retract(InFlight& step, std::uint32_t record);
  void give_back(Sequence& sequence);
  void keep_tail_promise(Sequence& sequence);
  void forget(std::uint32_t record);

  SchedulerConfig config_;
  kv::PagePool& pool_;
  kv::BlockTable table_;
  std::int32_t most_kv_tokens_ = 0;

  std::vector<Sequence> records_;
  std::vector<std::uint32_t> spare_records_;
  std::unordered_map<std::uint32_t, std::uint32_t> by_id_;
  std::vector<std::uint32_t> running_;  // oldest first
  std::vector<std::uint32_t> waiting_;  // oldest first
  std::vector<SlotId> free_slots_;
  std::vector<Ended> ended_;

  std::array<InFlight, kMaxInFlight> steps_;
  std::uint64_t next_step_ = 0;
  int in_flight_ = 0;
  std::int64_t live_ = 0;        // sequences that have not ended
  std::int32_t ending_ = 0;      // ended sequences whose pages wait for a step in flight
  std::int32_t chunk_left_ = 0;  // prompt tokens that the plan being made still has room for
  bool out_of_pages_ = false;    // the plan being made waits for pages of ending sequences
  std::uint64_t arrivals_ = 0;
  std::int64_t retractions_ = 0;
};

}  // namespace quire::scheduler
