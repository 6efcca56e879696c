#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::scheduler {
namespace {

struct Rig {
  Rig(const std::vector<kv::GroupRule>& rules, std::int64_t slabs, const SchedulerConfig& config) {
    kv::PoolConfig pool_config;
    std::vector<std::int64_t> strides;
    for (const kv::GroupRule& rule : rules) {
      strides.push_back(64 * rule.page_tokens);
      pool_config.groups.push_back({rule.keep == kv::Keep::all ? "full" : "window", rule});
    }
    pool_config.plan = *kv::plan_slabs(strides, 0);
    pool_config.slabs = slabs;
    pool = kv::PagePool::create(std::move(pool_config)).value();
    scheduler = Scheduler::create(config, *pool).value();
  }
  Status submit(std::uint32_t id, int prompt, int output) {
    return scheduler->submit({SequenceId{id}, prompt, output, false});
  }
  // Commits the oldest step: every row succeeds; `finished` ends.
  std::vector<Ended> commit(const StepPlan& plan, std::vector<std::uint32_t> finished = {}) {
    std::vector<RowResult> results;
    for (const PlanRow& row : plan.rows) {
      const bool stop = std::count(finished.begin(), finished.end(), row.sequence.value) > 0;
      results.push_back({row.yields_token && !stop ? 1 : 0, stop});
    }
    const std::span<const Ended> ended = scheduler->commit(results);
    EXPECT_EQ(scheduler->audit(), std::vector<std::string>());
    return {ended.begin(), ended.end()};
  }
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<Scheduler> scheduler;
};

const kv::GroupRule kFull4{kv::Keep::all, 0, 4};

TEST(Scheduler, OneRequestFromChunksToItsLength) {
  Rig rig({kFull4}, 100, {4, 8, 100, 10});
  ASSERT_TRUE(rig.submit(1, 13, 3).ok());
  const StepPlan* plan = rig.scheduler->plan();
  EXPECT_EQ(to_string(*plan),
            "step 0: 0 decode, 0 verify, 1 extend, 8 tokens, 0 logits\n"
            "  extend sequence 1 slot 1 (new) tokens [0, 8) kv 8/8 from literals g0[0]=1 g0[1]=2\n");
  EXPECT_TRUE(rig.commit(*plan).empty());
  plan = rig.scheduler->plan();
  EXPECT_EQ(to_string(*plan),
            "step 1: 0 decode, 0 verify, 1 extend, 5 tokens, 1 logits\n"
            "  extend sequence 1 slot 1 tokens [8, 13) kv 13/16 from literals logits [12, 13) gives output 0 "
            "g0[2]=3 g0[3]=4\n");
  EXPECT_TRUE(rig.commit(*plan).empty());
  plan = rig.scheduler->plan();
  EXPECT_EQ(to_string(*plan),
            "step 2: 1 decode, 0 verify, 0 extend, 1 tokens, 1 logits\n"
            "  decode sequence 1 slot 1 tokens [13, 14) kv 14/16 from last output logits [13, 14) gives "
            "output 1\n");
  EXPECT_TRUE(rig.commit(*plan).empty());
  plan = rig.scheduler->plan();
  EXPECT_EQ(rig.commit(*plan), (std::vector<Ended>{{SequenceId{1}, EndReason::length}}));
  EXPECT_FALSE(rig.scheduler->has_work());
  EXPECT_EQ(rig.scheduler->plan(), nullptr);
}

TEST(Scheduler, DecodesComeFirstAndChunksShareTheirBudget) {
  Rig rig({kFull4}, 100, {4, 8, 100, 10});
  ASSERT_TRUE(rig.submit(1, 3, 20).ok());
  rig.commit(*rig.scheduler->plan());
  ASSERT_TRUE(rig.submit(2, 5, 20).ok());
  ASSERT_TRUE(rig.submit(3, 9, 20).ok());
  const StepPlan* plan = rig.scheduler->plan();
  ASSERT_EQ(plan->rows.size(), 3u);
  EXPECT_EQ(plan->rows[0].kind, RowKind::decode);
  EXPECT_EQ(plan->rows[1].query_count, 5);
  EXPECT_EQ(plan->rows[2].query_count, 3);
  EXPECT_FALSE(plan->rows[2].yields_token);
  EXPECT_EQ(plan->rows[2].first_row, 6);
  EXPECT_EQ(plan->total_q, 9);
  EXPECT_EQ(plan->decode_q, 1);
}

TEST(Scheduler, AdmissionPromisesThePageOfTheFirstDecodedToken) {
  Rig rig({kFull4}, 4, {2, 16, 100, 10});  // 3 pages
  ASSERT_TRUE(rig.submit(1, 8, 4).ok());
  ASSERT_TRUE(rig.submit(2, 1, 1).ok());
  const StepPlan* plan = rig.scheduler->plan();
  EXPECT_EQ(plan->rows.size(), 1u);  // the third page is not free for the second request
  EXPECT_EQ(rig.pool->promised(GroupId{0}), 1);
  rig.commit(*plan);
  plan = rig.scheduler->plan();
  EXPECT_EQ(plan->rows.at(0).kind, RowKind::decode);
  EXPECT_EQ(rig.pool->promised(GroupId{0}), 0);
  rig.commit(*plan);
}

TEST(Scheduler, AVoidRowKeepsItsPagesUntilItsStepIsCommitted) {
  Rig rig({kFull4}, 100, {1, 8, 100, 10});
  ASSERT_TRUE(rig.submit(1, 3, 20).ok());
  ASSERT_TRUE(rig.submit(2, 3, 1).ok());
  const StepPlan* first = rig.scheduler->plan();
  const StepPlan* second = rig.scheduler->plan();  // decodes what `first` has not given yet
  EXPECT_EQ(second->rows.at(0).input, Input::last_output);
  EXPECT_EQ(rig.commit(*first, {1}), (std::vector<Ended>{{SequenceId{1}, EndReason::finished}}));
  EXPECT_FALSE(rig.scheduler->is_live(SequenceId{1}));
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 1);
  EXPECT_EQ(rig.scheduler->plan(), nullptr);  // the only slot is not free yet
  EXPECT_TRUE(rig.commit(*second).empty());
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 0);
  const StepPlan* third = rig.scheduler->plan();
  EXPECT_EQ(third->rows.at(0).sequence, SequenceId{2});
  EXPECT_EQ(rig.commit(*third).size(), 1u);
}

TEST(Scheduler, RetractsTheYoungestAndResumesIt) {
  Rig rig({kFull4}, 7, {4, 64, 24, 10});  // 6 pages
  ASSERT_TRUE(rig.submit(1, 7, 17).ok());
  ASSERT_TRUE(rig.submit(2, 7, 5).ok());
  int steps = 0;
  std::vector<std::uint32_t> ends;
  std::vector<std::int32_t> second_outputs;
  while (rig.scheduler->has_work()) {
    ASSERT_LT(++steps, 100);
    const StepPlan* plan = rig.scheduler->plan();
    for (const SequenceId sequence : plan->retracted) EXPECT_EQ(sequence, SequenceId{2});
    for (const PlanRow& row : plan->rows) {
      if (row.sequence == SequenceId{2} && row.yields_token) second_outputs.push_back(row.output_index);
    }
    for (const Ended& ended : rig.commit(*plan)) ends.push_back(ended.sequence.value);
  }
  EXPECT_EQ(rig.scheduler->retractions(), 0);  // 2 ends before 1 needs its pages
  EXPECT_EQ(second_outputs, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));

  ASSERT_TRUE(rig.submit(3, 7, 17).ok());
  ASSERT_TRUE(rig.submit(4, 7, 15).ok());
  second_outputs.clear();
  while (rig.scheduler->has_work()) {
    ASSERT_LT(++steps, 200);
    const StepPlan* plan = rig.scheduler->plan();
    for (const SequenceId sequence : plan->retracted) EXPECT_EQ(sequence, SequenceId{4});
    for (const PlanRow& row : plan->rows) {
      if (row.sequence == SequenceId{4} && row.yields_token) second_outputs.push_back(row.output_index);
    }
    rig.commit(*plan);
  }
  EXPECT_GT(rig.scheduler->retractions(), 0);
  ASSERT_EQ(second_outputs.size(), 15u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(second_outputs[static_cast<std::size_t>(i)], i);
}

TEST(Scheduler, ScoringAsksForEveryPositionOnce) {
  Rig rig({kFull4}, 100, {2, 5, 100, 10});
  ASSERT_TRUE(rig.scheduler->submit({SequenceId{1}, 12, 0, true, false}).ok());
  std::int32_t next = 0;
  std::vector<Ended> ended;
  while (rig.scheduler->has_work()) {
    const StepPlan* plan = rig.scheduler->plan();
    EXPECT_EQ(plan->rows.at(0).logits_begin, next);
    EXPECT_EQ(plan->rows.at(0).logits_count, plan->rows.at(0).query_count);
    next += plan->rows.at(0).logits_count;
    ended = rig.commit(*plan);
  }
  EXPECT_EQ(next, 12);
  EXPECT_EQ(ended, (std::vector<Ended>{{SequenceId{1}, EndReason::scored}}));
}

TEST(Scheduler, AWindowHoldsNoMoreThanWindowPlusChunk) {
  constexpr int kWindow = 512;
  constexpr int kChunk = 256;
  for (const int page : {1, 16, 64}) {
    Rig rig({{kv::Keep::all, 0, page}, {kv::Keep::window, kWindow, page}}, 40000 / page,
            {1, kChunk, 32768, 10});
    ASSERT_TRUE(rig.submit(1, 32000, 30).ok());
    const StepPlan* ahead = rig.scheduler->plan();
    while (rig.scheduler->has_work()) {
      const StepPlan* next = rig.scheduler->plan();
      const StepPlan& oldest = *ahead;
      std::vector<RowResult> results;
      for (const PlanRow& row : oldest.rows) results.push_back({row.yields_token ? 1 : 0, false});
      rig.scheduler->commit(results);
      ahead = next;
    }
    EXPECT_LE(rig.pool->peak(GroupId{1}), (kWindow + kChunk + page - 1) / page + 2);
    EXPECT_TRUE(rig.pool->idle());
  }
}

TEST(Scheduler, RefusesWithTheNumbers) {
  Rig rig({kFull4}, 7, {4, 8, 100, 2});  // 6 pages: 24 tokens
  EXPECT_EQ(rig.scheduler->most_kv_tokens(), 24);
  EXPECT_NE(rig.submit(1, 90, 20).error().message.find("ask for at most 10 new tokens"), std::string::npos);
  EXPECT_NE(rig.submit(1, 100, 20).error().message.find("ask for at most 1 new token"), std::string::npos);
  EXPECT_NE(rig.submit(1, 101, 1).error().message.find("shorten the prompt"), std::string::npos);
  const Status pages = rig.submit(1, 20, 6);
  EXPECT_EQ(pages.error().code, Code::no_resources);
  EXPECT_NE(pages.error().message.find("needs KV for 25 tokens"), std::string::npos) << pages.error().message;
  EXPECT_NE(pages.error().message.find("ask for at most 5 new tokens, or give the KV cache more memory"),
            std::string::npos);
  EXPECT_NE(rig.submit(1, 30, 6).error().message.find("shorten the prompt"), std::string::npos);
  EXPECT_NE(rig.submit(1, 0, 6).error().message.find("empty prompt"), std::string::npos);
  EXPECT_FALSE(rig.submit(1, 5, 0).ok());
  EXPECT_TRUE(rig.submit(1, 20, 5).ok());
  EXPECT_TRUE(rig.submit(2, 20, 5).ok());
  EXPECT_NE(rig.submit(3, 20, 5).error().message.find("2 requests are waiting"), std::string::npos);
  EXPECT_FALSE(Scheduler::create({1, 0, 10, 1}, *rig.pool).ok());
}

TEST(Scheduler, APromptAsLongAsTheContextHasOneToken) {
  for (const int page : {1, 4, 16}) {
    Rig rig({{kv::Keep::all, 0, page}}, 100, {4, 8, 32, 10});
    ASSERT_TRUE(rig.submit(1, 32, 1).ok());
    std::vector<Ended> ended;
    for (int step = 0; step < 4; ++step) {
      const StepPlan* plan = rig.scheduler->plan();
      ASSERT_NE(plan, nullptr);
      ended = rig.commit(*plan);
    }
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].reason, EndReason::length);
    EXPECT_EQ(rig.scheduler->plan(), nullptr);
  }
}

TEST(Scheduler, CancelsInEveryState) {
  Rig rig({kFull4}, 100, {1, 4, 100, 10});
  ASSERT_TRUE(rig.submit(1, 10, 5).ok());
  ASSERT_TRUE(rig.submit(2, 3, 5).ok());
  const StepPlan* plan = rig.scheduler->plan();
  EXPECT_TRUE(rig.scheduler->cancel(SequenceId{2}));  // waiting
  EXPECT_TRUE(rig.scheduler->cancel(SequenceId{1}));  // in a chunk in flight
  EXPECT_FALSE(rig.scheduler->cancel(SequenceId{1}));
  EXPECT_TRUE(rig.scheduler->has_work());
  EXPECT_TRUE(rig.commit(*plan).empty());
  EXPECT_FALSE(rig.scheduler->has_work());
  ASSERT_TRUE(rig.submit(3, 3, 5).ok());
  rig.commit(*rig.scheduler->plan());
  EXPECT_TRUE(rig.scheduler->cancel(SequenceId{3}));  // decoding, nothing in flight
  EXPECT_EQ(rig.scheduler->audit(), std::vector<std::string>());
  EXPECT_TRUE(rig.pool->idle());
}

TEST(Scheduler, GoesDownWithSequencesOnBoard) {
  Rig rig({kFull4}, 100, {2, 4, 100, 10});
  ASSERT_TRUE(rig.submit(1, 10, 5).ok());
  rig.commit(*rig.scheduler->plan());
  rig.scheduler.reset();
  EXPECT_TRUE(rig.pool->idle());
}

// ---- prefixes, policies, pace --------------------------------------------------------------------------

using Tokens = std::vector<std::int32_t>;

Tokens counting(std::int32_t begin, std::int32_t count) {
  Tokens tokens;
  for (std::int32_t t = 0; t < count; ++t) tokens.push_back(begin + t);
  tokens.reserve(200);  // outputs follow, and the scheduler keeps the address
  return tokens;
}

Status submit(Rig& rig, std::uint32_t id, const Tokens& prompt, int output, int priority = 0) {
  return rig.scheduler->submit({.sequence = SequenceId{id},
                                .prompt_tokens = static_cast<std::int32_t>(prompt.size()),
                                .max_new_tokens = output,
                                .tokens = prompt.data(),
                                .priority = priority});
}

// Steps until nothing is left; the order in which sequences were admitted.
std::vector<std::uint32_t> drain(Rig& rig, std::vector<Admission>* admissions = nullptr) {
  std::vector<std::uint32_t> order;
  for (int steps = 0; rig.scheduler->has_work(); ++steps) {
    EXPECT_LT(steps, 1000);
    const StepPlan* plan = rig.scheduler->plan();
    for (const Admission& admission : plan->admitted) {
      order.push_back(admission.sequence.value);
      if (admissions != nullptr) admissions->push_back(admission);
    }
    rig.commit(*plan);
  }
  return order;
}

TEST(Scheduler, APromptInProgressIsWaitedForAndThenShared) {
  SchedulerConfig config{.max_running = 4, .chunk_tokens = 40, .max_context = 100, .max_waiting = 10};
  config.hold_tokens = 8;
  Rig rig({kFull4}, 100, config);
  const Tokens first = counting(0, 60);
  Tokens second = counting(0, 58);
  second[57] = 999;
  const Tokens other = counting(500, 8);
  ASSERT_TRUE(submit(rig, 1, first, 1).ok());
  ASSERT_TRUE(submit(rig, 2, second, 1).ok());
  ASSERT_TRUE(submit(rig, 3, other, 1).ok());
  rig.commit(*rig.scheduler->plan());  // 40 tokens of 1
  const StepPlan* plan = rig.scheduler->plan();
  ASSERT_EQ(plan->admitted.size(), 1u);  // 2 is held, 3 overtakes it
  EXPECT_EQ(plan->admitted[0].sequence, SequenceId{3});
  rig.commit(*plan);
  plan = rig.scheduler->plan();
  ASSERT_EQ(plan->admitted.size(), 1u);
  EXPECT_EQ(plan->admitted[0].cached_tokens, 57);
  EXPECT_EQ(plan->rows.at(0).query_begin, 57);
  EXPECT_EQ(plan->rows.at(0).query_count, 1);
  rig.commit(*plan);
  EXPECT_FALSE(rig.scheduler->has_work());
}

TEST(Scheduler, AHitInsideAPageIsACopyWhileItsOwnerRuns) {
  Rig rig({kFull4}, 100, {.max_running = 4, .chunk_tokens = 40, .max_context = 100, .max_waiting = 10});
  const Tokens first = counting(0, 10);
  ASSERT_TRUE(submit(rig, 1, first, 5).ok());
  const PageId tail = [&] {
    const StepPlan* plan = rig.scheduler->plan();
    rig.commit(*plan);
    return rig.scheduler->table().row(plan->rows[0].slot, GroupId{0})[2];
  }();
  ASSERT_TRUE(submit(rig, 2, first, 5).ok());
  const StepPlan* plan = rig.scheduler->plan();
  ASSERT_EQ(plan->copies.size(), 1u);
  EXPECT_EQ(plan->copies[0].from, tail);
  EXPECT_EQ(plan->copies[0].tokens, 1);  // 9 of 10 tokens may hit
  EXPECT_EQ(plan->admitted.at(0).cached_tokens, 9);
  rig.scheduler->cancel(SequenceId{1});  // the source stays until the copy has run
  EXPECT_GT(rig.pool->references(GroupId{0}, tail), 0);
  rig.commit(*plan);
  drain(rig);
}

TEST(Scheduler, PoliciesOrderTheQueue) {
  const Tokens known = counting(0, 20);
  const Tokens fresh = counting(300, 20);
  const Tokens more = counting(0, 30);
  const auto order = [&](Policy policy) {
    SchedulerConfig config{.max_running = 1, .chunk_tokens = 40, .max_context = 100, .max_waiting = 10};
    config.policy = policy;
    Rig rig({kFull4}, 100, config);
    EXPECT_TRUE(submit(rig, 1, known, 1).ok());
    drain(rig);
    EXPECT_TRUE(submit(rig, 2, fresh, 1, 0).ok());
    EXPECT_TRUE(submit(rig, 3, more, 1, 1).ok());
    EXPECT_TRUE(submit(rig, 4, fresh, 1, 5).ok());
    return drain(rig);
  };
  EXPECT_EQ(order(Policy::fcfs), (std::vector<std::uint32_t>{2, 3, 4}));
  EXPECT_EQ(order(Policy::longest_prefix), (std::vector<std::uint32_t>{3, 2, 4}));
  EXPECT_EQ(order(Policy::priority), (std::vector<std::uint32_t>{4, 3, 2}));
}

TEST(Scheduler, WaitingCountsAsPriority) {
  SchedulerConfig config{.max_running = 1, .chunk_tokens = 40, .max_context = 100, .max_waiting = 300};
  config.policy = Policy::priority;
  config.aging_plans = 10;
  Rig rig({kFull4}, 100, config);
  std::vector<Tokens> prompts(60, counting(0, 5));
  ASSERT_TRUE(submit(rig, 1, prompts[0], 1, 0).ok());
  std::uint32_t next = 2;
  std::size_t before_1 = 0;
  bool seen = false;
  while (!seen && next < 60) {  // one of level 3 comes with every step
    ASSERT_TRUE(submit(rig, next, prompts[next - 1], 1, 3).ok());
    ++next;
    const StepPlan* plan = rig.scheduler->plan();
    for (const Admission& admission : plan->admitted) seen = seen || admission.sequence == SequenceId{1};
    before_1 += seen ? 0 : 1;
    rig.commit(*plan);
  }
  EXPECT_TRUE(seen);
  EXPECT_GE(before_1, 29u);
  EXPECT_LE(before_1, 32u);
  drain(rig);
}

TEST(Scheduler, RetractionKeepsThePrefix) {
  Rig rig({kFull4}, 9, {.max_running = 4, .chunk_tokens = 64, .max_context = 24, .max_waiting = 10});
  Tokens one = counting(0, 7);
  Tokens two = counting(100, 7);
  ASSERT_TRUE(submit(rig, 1, one, 17).ok());
  ASSERT_TRUE(submit(rig, 2, two, 15).ok());
  std::vector<Admission> admissions;
  for (int steps = 0; rig.scheduler->has_work(); ++steps) {
    ASSERT_LT(steps, 200);
    const StepPlan* plan = rig.scheduler->plan();
    for (const Admission& admission : plan->admitted) admissions.push_back(admission);
    for (const PlanRow& row : plan->rows)
      if (row.yields_token) (row.sequence == SequenceId{1} ? one : two).push_back(row.output_index);
    rig.commit(*plan);
  }
  ASSERT_GT(rig.scheduler->retractions(), 0);
  ASSERT_GT(admissions.size(), 2u);
  EXPECT_TRUE(admissions[2].resumed);
  EXPECT_EQ(admissions[2].sequence, SequenceId{2});
  EXPECT_GE(admissions[2].cached_tokens, 4);  // what was not needed for 1
}

TEST(Scheduler, DeadlinesAreKeptByTheCallersClock) {
  Rig rig({kFull4}, 100, {.max_running = 1, .chunk_tokens = 40, .max_context = 100, .max_waiting = 10});
  const Tokens prompt = counting(0, 8);
  for (std::uint32_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(rig.scheduler
                    ->submit({.sequence = SequenceId{id},
                              .prompt_tokens = 8,
                              .max_new_tokens = 50,
                              .tokens = prompt.data(),
                              .deadline_us = id == 3 ? 0 : 100 * id})
                    .ok());
  }
  rig.commit(*rig.scheduler->plan());
  EXPECT_TRUE(rig.scheduler->expire(100).empty());
  const auto first = rig.scheduler->expire(101);
  EXPECT_EQ((std::vector<SequenceId>{first.begin(), first.end()}), (std::vector<SequenceId>{SequenceId{1}}));
  EXPECT_EQ(rig.scheduler->expire(1000).size(), 1u);
  EXPECT_TRUE(rig.scheduler->expire(10000).empty());
  EXPECT_TRUE(rig.scheduler->is_live(SequenceId{3}));
  rig.scheduler->cancel(SequenceId{3});
  EXPECT_EQ(rig.scheduler->audit(), std::vector<std::string>());
}

TEST(Pacer, ChunksShrinkToTheTarget) {
  Pacer pacer(10000);
  EXPECT_EQ(pacer.chunk_tokens(4, 512), 512);  // nothing is known yet
  for (int i = 0; i < 50; ++i) pacer.observe({.decode_rows = 4, .extend_tokens = 0, .us = 4000});
  for (int i = 0; i < 50; ++i) pacer.observe({.decode_rows = 4, .extend_tokens = 100, .us = 4000 + 100 * 50});
  EXPECT_NEAR(pacer.chunk_tokens(4, 512), 120, 1);
  EXPECT_EQ(pacer.chunk_tokens(0, 512), 512);  // nobody waits for a token
  EXPECT_EQ(pacer.chunk_tokens(4, 60), 60);
  for (int i = 0; i < 50; ++i) pacer.observe({.decode_rows = 4, .extend_tokens = 0, .us = 20000});
  EXPECT_EQ(pacer.chunk_tokens(4, 512), Pacer::kLeastTokens);
  EXPECT_EQ(Pacer(0).chunk_tokens(4, 512), 512);
}

}  // namespace
}  // namespace quire::scheduler
