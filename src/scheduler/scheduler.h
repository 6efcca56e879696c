// Scheduler: which sequences compute how many tokens in the next step, and the pages for it. Continuous
// batching: a decode row for every sequence whose prompt is done, and prompt chunks of at most chunk_tokens
// together, in one step. Pure host code over kv/: ids and counts, no tensor, no device, no clock of its own.
// Deterministic: the same calls give the same plans.
//
// The loop: plan(), run it, commit() what it gave. One step may be planned ahead: plan, plan, commit, plan,
// commit, ... A plan that is made before the step ahead is committed takes each of its rows to succeed; when
// that step then ends a sequence, the row already planned for it is void: its result is ignored, and slot and
// pages come back when the last plan that names them is committed.
//
// A guided sequence sits out the plan that is made while a token of its own is on its way; the others go on.
//
// Prefixes. What a plan computes of a prompt joins the prefix tree in the plan after it (a copy or a row that
// reads it runs later on the same stream); output and tail join when the sequence ends or is retracted. At
// admission the longest known prefix is taken over: whole pages by reference, of the page in which it ends
// the first tokens by StepPlan::copies. At least one token is computed: its logits are wanted. A request that
// would gain from a prompt in progress waits for it, so no prefix is computed twice, and samples of one
// prompt share its pages.
//
// Pages. Admission promises, for all groups at once or not at all, the pages of the whole prompt and of one
// token more (windows: window + chunk + one page), less what is shared. Decoding takes a page when a length
// crosses a page border. When there is none, the tree evicts; when that is not enough, a running sequence is
// retracted: the one that loses fewest computed tokens per page, never one before the sequence in need. It
// waits in its old place, its prefix stays in the tree for as long as nobody needs the pages. A request that
// cannot fit alone is refused by submit(), and the first in order is never retracted for others, so it always
// gets on.
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
#include "kv/prefix_tree.h"
#include "scheduler/pacer.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"
#include "scheduler/waiting_list.h"

namespace quire::scheduler {

struct SchedulerConfig {
  std::int32_t max_running = 1;   // sequences with a slot; slots are 1 .. max_running
  std::int32_t chunk_tokens = 1;  // most prompt tokens of one step
  std::int32_t max_context = 1;   // of one sequence: prompt, and output behind its first token
  std::int32_t max_waiting = 1;   // queue length; submit() refuses more
  Policy policy = Policy::fcfs;
  // Policy::priority: so many plans of waiting count as one level. Policy::longest_prefix: who has waited so
  // many goes first.
  std::int32_t aging_plans = 256;
  // A prompt waits for another one in progress when that saves it at least so many tokens; 0: it never waits.
  std::int32_t hold_tokens = 32;
  // Steps with running decodes aim to take no longer (prompt chunks shrink, down to Pacer::kLeastTokens); 0:
  // no target. Needs observe().
  std::int64_t target_step_us = 0;
  kv::PrefixTreeConfig cache = {};
};

inline constexpr int kMaxInFlight = 2;  // plans that are not committed

class Scheduler {
 public:
  // Refuses limits that contradict each other, and what there is no memory for.
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

  // Ends the sequences whose deadline is before `now_us`, as cancel() does, and names them; valid until the
  // next call.
  std::span<const SequenceId> expire(std::int64_t now_us);
  // What a committed step took, for target_step_us.
  void observe(const StepCost& cost) { pacer_.observe(cost); }

  // Whether results of the sequence's rows still count.
  bool is_live(SequenceId sequence) const;
  // Whether it has a slot; else it waits.
  bool is_running(SequenceId sequence) const;
  // Sequences that wait or run, or void rows whose step is in flight.
  bool has_work() const { return live_ > 0 || in_flight_ > 0; }
  int in_flight() const { return in_flight_; }
  std::int32_t running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  std::int64_t retractions() const { return retractions_; }
  // The most tokens of KV that one sequence can have in this pool.
  std::int32_t most_kv_tokens() const { return most_kv_tokens_; }
  const kv::BlockTable& table() const { return table_; }
  const kv::PrefixTree& tree() const { return tree_; }
  // Forgets every prefix that nobody uses now.
  void clear_cache() { tree_.clear(); }

  // For tests: the next promise of pages that may fail does, as if none could be had. One that an empty pool
  // keeps is never refused: nothing could go on without it.
  void refuse_next_promise() { refuse_next_ = true; }

  // Most block table entries that one plan changes: for the buffers that take them up.
  std::int64_t most_updates() const;

  // The conservation checker over pool, table, tree and sequences; at idle also that nothing but the tree
  // holds a page. A list of violations, empty when all is well.
  std::vector<std::string> audit() const;

 private:
  struct Turn {  // a running sequence's part in the plan being made; its pages are there
    std::uint32_t record = 0;
    RowKind kind = RowKind::decode;
    std::int32_t count = 0;
    std::int32_t updates_begin = 0;
    std::int32_t updates_end = 0;
  };
  struct Pin {  // the source of a copy, until its step is committed
    GroupId group;
    PageId page;
    SequenceId sequence;
  };
  struct InFlight {
    StepPlan plan;
    std::vector<std::uint32_t> records;  // per row: index into records_
    std::vector<Pin> pins;
    std::vector<kv::NodeRef> sources;
  };
  struct Candidate {  // for admission, holding what it would share
    kv::Match match;
    kv::NodeRef source;         // of the copy, when the hit ends inside a page that cannot be adopted
    std::size_t first_pin = 0;  // its pins in the step
  };
  struct Progress {
    std::uint32_t record = 0;
    SequenceId sequence;
  };
  enum class Verdict : std::uint8_t { admitted, held, no_room };

  Scheduler(const SchedulerConfig& config, kv::PagePool& pool, kv::BlockTable table,
            std::int32_t most_kv_tokens);

  // scheduler.cc
  Status check(const RequestInfo& info) const;
  void enqueue(std::uint32_t record);
  void end(std::uint32_t record);
  void forget(std::uint32_t record);
  void commit_row(const PlanRow& row, std::uint32_t record, const RowResult& result);
  void unpin(InFlight& step);

  // plan.cc
  void begin_plan(InFlight& step);
  void cover_running(InFlight& step);
  void add_rows(InFlight& step, RowKind kind);
  PlanRow& add_row(InFlight& step, const Turn& turn);
  bool before(std::uint32_t a, std::uint32_t b) const;

  // admission.cc
  void admit(InFlight& step);
  std::size_t next_waiting();
  void refresh_match(std::size_t index);
  Verdict admit_one(InFlight& step, std::uint32_t record);
  bool try_match(InFlight& step, std::uint32_t record, const kv::Match& match, std::int32_t literals);
  bool still_held(const Sequence& sequence) const;
  bool is_held(Sequence& sequence, std::int32_t cached, std::int32_t limit);
  Candidate take_prefix(InFlight& step, Sequence& sequence, const kv::Match& match);
  bool promise_pages(Sequence& sequence, const Candidate& candidate, std::int32_t literals);
  void leave_prefix(InFlight& step, Sequence& sequence, const Candidate& candidate);
  void seat(InFlight& step, std::uint32_t record, const Candidate& candidate, std::int32_t literals);
  void fill_row(InFlight& step, Sequence& sequence, const Candidate& candidate, GroupId group);

  // pages.cc
  kv::PageCounts most_pages(std::int32_t kv_tokens) const;
  bool grow(Sequence& sequence, const kv::PageCounts& missing);
  bool cover(Sequence& sequence, std::int32_t end);
  bool cover_or_retract(InFlight& step, std::size_t index, std::int32_t end);
  std::size_t pick_victim(std::size_t index) const;
  void retract(InFlight& step, std::size_t index);
  void publish(Sequence& sequence);
  void publish_progress();
  void give_back(Sequence& sequence);
  void keep_tail_promise(Sequence& sequence);

  SchedulerConfig config_;
  kv::PagePool& pool_;
  kv::BlockTable table_;
  kv::PrefixTree tree_;
  Pacer pacer_;
  std::int32_t most_kv_tokens_ = 0;

  std::vector<Sequence> records_;
  std::vector<std::uint32_t> spare_records_;
  std::unordered_map<std::uint32_t, std::uint32_t> by_id_;
  std::vector<std::uint32_t> running_;  // first in order first
  WaitingList waiting_;
  std::vector<SlotId> free_slots_;
  std::vector<Ended> ended_;
  std::vector<SequenceId> expired_;
  std::vector<Progress> progressed_;  // prompts of which the last plan computes something
  std::array<std::vector<PageId>, kv::kMaxGroups> shared_;  // of the candidate for admission: pages to share
  std::vector<Turn> turns_;

  std::array<InFlight, kMaxInFlight> steps_;
  std::uint64_t next_step_ = 0;
  std::uint64_t plans_ = 0;  // calls of plan()
  int in_flight_ = 0;
  std::int64_t live_ = 0;          // sequences that have not ended
  std::int32_t ending_ = 0;        // ended sequences whose pages wait for a step in flight
  std::int32_t pinned_steps_ = 0;  // steps in flight with copies
  std::int32_t chunk_left_ = 0;    // prompt tokens that the plan being made still has room for
  std::int64_t entries_left_ = 0;  // shared table entries likewise
  bool out_of_pages_ = false;      // the plan being made waits for pages of ending sequences
  std::size_t next_probe_ = 0;
  std::uint64_t arrivals_ = 0;
  std::int64_t retractions_ = 0;
  bool refuse_next_ = false;
  std::int64_t earliest_deadline_us_ = 0;  // 0: nobody has one
};

}  // namespace quire::scheduler
