#include "server/loop/loop.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "server/loop/fake_session.h"
#include "server/testing/soon.h"

namespace quire::server {
namespace {

using std::chrono::seconds;

// What the sinks of a test heard, for the test's own thread.
class Ear {
 public:
  struct Heard {
    std::string text;
    std::int64_t tokens = 0;
    Finish finish = Finish::none;
    int updates_after_finish = 0;
  };
  Sink sink() {
    return [this](Update update) { take(std::move(update)); };
  }
  // False when `count` requests or refusals did not end in time.
  bool wait_ended(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [&] { return ended_ >= count; });
  }
  bool wait_tokens(std::int64_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [&] { return tokens_ >= count; });
  }
  Heard heard(Ticket ticket, std::size_t index = 0) {
    const std::lock_guard lock(mutex_);
    return heard_[{ticket, index}];
  }
  std::vector<std::pair<Ticket, Refusal>> refusals() {
    const std::lock_guard lock(mutex_);
    return refusals_;
  }
  std::set<std::thread::id> threads() {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  void take(Update update) {
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    if (update.refusal != nullptr) {
      refusals_.emplace_back(update.ticket, *update.refusal);
      ++ended_;
    } else {
      Heard& heard = heard_[{update.ticket, update.index}];
      if (heard.finish != Finish::none) ++heard.updates_after_finish;
      heard.text += update.output.text;
      heard.tokens += static_cast<std::int64_t>(update.output.tokens.size());
      tokens_ += static_cast<std::int64_t>(update.output.tokens.size());
      if (update.output.finish != Finish::none) {
        heard.finish = update.output.finish;
        ++ended_;
      }
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Ticket, std::size_t>, Heard> heard_;
  std::vector<std::pair<Ticket, Refusal>> refusals_;
  std::set<std::thread::id> threads_;
  std::size_t ended_ = 0;
  std::int64_t tokens_ = 0;
};

TextRequest request(std::int32_t max_tokens, std::string text = "x") {
  TextRequest request;
  request.text = std::move(text);
  request.max_tokens = max_tokens;
  return request;
}

class EngineLoopTest : public testing::Test {
 protected:
  void open(std::int32_t room = 1 << 20, std::int64_t steps = std::int64_t{1} << 60) {
    auto session = std::make_unique<FakeSession>(room);
    fake_ = session.get();
    fake_->steps_allowed = steps;
    loop_ = std::make_unique<EngineLoop>(std::move(session));
  }
  // After everything that was handed in before.
  void round_trip() {
    std::mutex mutex;
    std::condition_variable came;
    bool done = false;
    loop_->post([&](Session&) {
      const std::lock_guard lock(mutex);
      done = true;
      came.notify_all();
    });
    std::unique_lock lock(mutex);
    ASSERT_TRUE(came.wait_for(lock, seconds(60), [&] { return done; }));
  }

  Ear ear_;
  FakeSession* fake_ = nullptr;  // its atomics only
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(EngineLoopTest, EachRequestOfAGroupIsAnswered) {
  open();
  const Ticket one = loop_->submit({request(3)}, ear_.sink());
  const Ticket two = loop_->submit({request(1), request(2)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(3));
  EXPECT_EQ(ear_.heard(one).text, "t0 t1 t2 ");
  EXPECT_EQ(ear_.heard(two, 0).text, "t0 ");
  EXPECT_EQ(ear_.heard(two, 1).text, "t0 t1 ");
  EXPECT_EQ(ear_.heard(two, 1).finish, Finish::length);
  EXPECT_EQ(ear_.threads().size(), 1u);
  EXPECT_FALSE(ear_.threads().contains(std::this_thread::get_id()));
  EXPECT_EQ(fake_->wrong_thread, 0);
}

TEST_F(EngineLoopTest, AGroupIsTakenWholeOrRefused) {
  open();
  const Ticket bad = loop_->submit({request(1), request(1, "bad"), request(1)}, ear_.sink());
  const Ticket huge = loop_->submit({request(1, "huge")}, ear_.sink());
  const Ticket late = loop_->submit({request(1), request(1), request(1, "late")}, ear_.sink());
  const Ticket good = loop_->submit({request(2)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(4));
  const auto refusals = ear_.refusals();
  ASSERT_EQ(refusals.size(), 3u);
  EXPECT_EQ(refusals[0].first, bad);
  EXPECT_EQ(refusals[0].second.why, Refusal::Why::invalid);
  EXPECT_EQ(refusals[0].second.message, "a bad prompt");
  EXPECT_EQ(refusals[1].first, huge);
  EXPECT_EQ(refusals[1].second.why, Refusal::Why::never_fits);
  EXPECT_EQ(refusals[2].first, late);
  EXPECT_EQ(refusals[2].second.why, Refusal::Why::invalid);
  EXPECT_EQ(ear_.heard(late).finish, Finish::none);  // its first requests were taken, and nobody heard of it
  EXPECT_EQ(ear_.heard(good).finish, Finish::length);
  EXPECT_TRUE(loop_->drain(Clock::now() + seconds(60)));
  EXPECT_EQ(fake_->running, 0);
}

TEST_F(EngineLoopTest, AFullQueueRefusesWithATime) {
  open(/*room=*/2, /*steps=*/0);
  loop_->submit({request(1), request(1)}, ear_.sink());
  loop_->submit({request(1)}, ear_.sink());
  loop_->submit({request(1), request(1), request(1)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(2));
  ASSERT_EQ(ear_.refusals().size(), 2u);
  EXPECT_EQ(ear_.refusals()[0].second.why, Refusal::Why::queue_full);
  EXPECT_GE(ear_.refusals()[0].second.retry_after_s, 1.0);
  fake_->steps_allowed = 10;
  ASSERT_TRUE(ear_.wait_ended(4));
  loop_->submit({request(1), request(1), request(1)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(5));
  ASSERT_EQ(ear_.refusals().size(), 3u);
  EXPECT_EQ(ear_.refusals()[2].second.why, Refusal::Why::never_fits);
}

TEST_F(EngineLoopTest, CancelEndsWhatIsUnfinished) {
  open(1 << 20, /*steps=*/2);
  const Ticket ticket = loop_->submit({request(2), request(1000)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_tokens(4));
  loop_->cancel(ticket);
  loop_->cancel(ticket);
  loop_->cancel(ticket + 1000);
  ASSERT_TRUE(ear_.wait_ended(2));
  EXPECT_EQ(ear_.heard(ticket, 0).finish, Finish::length);
  EXPECT_EQ(ear_.heard(ticket, 1).finish, Finish::cancelled);
  EXPECT_EQ(ear_.heard(ticket, 1).tokens, 2);
  round_trip();
  EXPECT_EQ(ear_.heard(ticket, 1).updates_after_finish, 0);
  EXPECT_EQ(fake_->running, 0);
}

TEST_F(EngineLoopTest, ACancelRightAfterSubmitEndsItToo) {
  open(1 << 20, /*steps=*/0);
  for (int i = 0; i < 100; ++i) loop_->cancel(loop_->submit({request(5), request(5)}, ear_.sink()));
  EXPECT_TRUE(ear_.wait_ended(200));
}

TEST_F(EngineLoopTest, ASlowSchemaHoldsUpNobodyElse) {
  open();
  fake_->hold_slow = true;
  TextRequest slow = request(2, "slow");
  slow.format = AnswerFormat::json_schema;
  const Ticket kept = loop_->submit({slow}, ear_.sink());
  const Ticket left = loop_->submit({slow}, ear_.sink());
  const Ticket quick = loop_->submit({request(2)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(1));
  EXPECT_EQ(ear_.heard(quick).finish, Finish::length);
  EXPECT_EQ(loop_->pulse().waiting, 2);
  loop_->cancel(left);
  fake_->hold_slow = false;
  ASSERT_TRUE(ear_.wait_ended(3));
  EXPECT_EQ(ear_.heard(kept).finish, Finish::length);
  EXPECT_EQ(ear_.heard(left).finish, Finish::cancelled);
  EXPECT_EQ(ear_.heard(left).tokens, 0);
  EXPECT_EQ(fake_->prepared, 2);  // not the one that nobody waited for
}

TEST_F(EngineLoopTest, ManyAnswersToOnePromptArePreparedOnce) {
  open();
  loop_->submit({request(1), request(1, ""), request(1, "other"), request(1, "")}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(4));
  EXPECT_EQ(fake_->prepared, 2);
}

TEST_F(EngineLoopTest, APromptOfManyAnswersIsThereOnce) {
  class Rules final : public GuideMaker {
    std::shared_ptr<Guide> make() const override { return nullptr; }
  };
  open();
  TextRequest of_ids = request(1, "");
  of_ids.ids = {5, 6, 7};
  of_ids.guides = std::make_shared<Rules>();
  loop_->submit({of_ids, request(1, ""), request(1, ""), request(1, "text"), request(1, "")}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(5));
  const std::vector<FakeSession::Prompt> prompts = fake_->prompts();
  ASSERT_EQ(prompts.size(), 5u);
  for (const std::size_t i : {0, 1, 2}) {
    EXPECT_EQ(prompts[i].ids, of_ids.ids) << i;
    EXPECT_EQ(prompts[i].at, prompts[0].at) << i << " has a copy";
    EXPECT_EQ(prompts[i].guides, of_ids.guides.get()) << i;
  }
  for (const std::size_t i : {3, 4}) {
    EXPECT_EQ(prompts[i].ids, (std::vector<std::int32_t>{'t', 'e', 'x', 't'})) << i;
    EXPECT_EQ(prompts[i].at, prompts[3].at) << i << " has a copy";
    EXPECT_EQ(prompts[i].guides, nullptr) << i;
  }
}

TEST_F(EngineLoopTest, ALongPromptHoldsUpOnlyItsLike) {
  open();
  fake_->hold_slow = true;
  const std::string long_text = "slow" + std::string(100'000, ' ');
  const Ticket slow = loop_->submit({request(2, long_text)}, ear_.sink());
  std::atomic<bool> beside_long{false}, beside{false};
  loop_->beside(long_text.size(), [&](const Session&) { beside_long = true; });
  loop_->beside(1, [&](const Session&) { beside = true; });
  const Ticket quick = loop_->submit({request(2)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(1));
  EXPECT_EQ(ear_.heard(quick).finish, Finish::length);
  EXPECT_TRUE(beside);  // handed in before
  EXPECT_FALSE(beside_long);
  fake_->hold_slow = false;
  ASSERT_TRUE(ear_.wait_ended(2));
  EXPECT_EQ(ear_.heard(slow).finish, Finish::length);
  EXPECT_TRUE(soon([&] { return beside_long.load(); }));
}

TEST_F(EngineLoopTest, NothingRunsBesideALoopThatHasStopped) {
  open();
  std::atomic<bool> before{false}, after{false};
  loop_->beside(1, [&](const Session&) { before = true; });
  EXPECT_TRUE(soon([&] { return before.load(); }));
  loop_->stop();
  loop_->beside(1, [&](const Session&) { after = true; });
  // Its session is still there: what was taken after all would run.
  EXPECT_FALSE(soon([&] { return after.load(); }, std::chrono::milliseconds(50)));
  loop_.reset();
  EXPECT_FALSE(after);
}

TEST_F(EngineLoopTest, StopWaitsForWhatIsPrepared) {
  open();
  fake_->hold_slow = true;
  const Ticket ticket = loop_->submit({request(2, "slow")}, ear_.sink());
  const Ticket behind = loop_->submit({request(2)}, ear_.sink());
  std::thread stopper([&] { loop_->stop(); });
  fake_->hold_slow = false;
  stopper.join();
  EXPECT_NE(ear_.heard(ticket).finish, Finish::none);
  EXPECT_NE(ear_.heard(behind).finish, Finish::none);
}

TEST_F(EngineLoopTest, WhatIsPreparedWhenDrainBeginsIsServed) {
  open();
  fake_->hold_slow = true;
  const Ticket before = loop_->submit({request(2, "slow")}, ear_.sink());
  loop_->begin_drain();
  loop_->submit({request(2)}, ear_.sink());
  fake_->hold_slow = false;
  ASSERT_TRUE(ear_.wait_ended(2));
  EXPECT_EQ(ear_.heard(before).finish, Finish::length);
  ASSERT_EQ(ear_.refusals().size(), 1u);
  EXPECT_NE(ear_.refusals()[0].first, before);
}

TEST_F(EngineLoopTest, ItSleepsWhenIdleAndSaysSo) {
  open();
  loop_->submit({request(3)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(1));
  Pulse pulse;
  ASSERT_TRUE(soon([&] {
    pulse = loop_->pulse();
    return pulse.idle;
  }));
  EXPECT_EQ(pulse.unfinished, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(loop_->pulse().turns, pulse.turns);  // no turn without something to do
  EXPECT_GE(loop_->pulse().since_turn_s, 0.03);
}

TEST_F(EngineLoopTest, DrainLetsRequestsEndAndRefusesMore) {
  open(1 << 20, /*steps=*/0);
  const Ticket ticket = loop_->submit({request(50)}, ear_.sink());
  ASSERT_TRUE(soon([&] { return fake_->running > 0; }));
  loop_->begin_drain();
  EXPECT_TRUE(loop_->pulse().draining);
  loop_->submit({request(1)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(1));
  EXPECT_EQ(ear_.refusals()[0].second.why, Refusal::Why::draining);
  fake_->steps_allowed = 1000;
  EXPECT_TRUE(loop_->drain(Clock::now() + seconds(60)));
  EXPECT_EQ(ear_.heard(ticket).finish, Finish::length);
}

TEST_F(EngineLoopTest, AtTheDeadlineDrainCancels) {
  open(1 << 20, /*steps=*/3);
  const Ticket ticket = loop_->submit({request(50)}, ear_.sink());
  ASSERT_TRUE(ear_.wait_tokens(3));
  EXPECT_FALSE(loop_->drain(Clock::now() + std::chrono::milliseconds(5)));
  EXPECT_EQ(ear_.heard(ticket).finish, Finish::cancelled);
}

TEST_F(EngineLoopTest, StopEndsEverySinkAndLaterSubmitsAreRefused) {
  open(1 << 20, /*steps=*/0);
  const Ticket ticket = loop_->submit({request(5), request(5)}, ear_.sink());
  loop_->stop();
  loop_->stop();
  EXPECT_EQ(ear_.heard(ticket, 0).finish, Finish::cancelled);
  EXPECT_EQ(ear_.heard(ticket, 1).finish, Finish::cancelled);
  loop_->submit({request(1)}, ear_.sink());
  ASSERT_EQ(ear_.refusals().size(), 1u);
  EXPECT_EQ(ear_.refusals()[0].second.why, Refusal::Why::draining);
  loop_->cancel(ticket);
  loop_->post([](Session&) { ADD_FAILURE() << "posted after the end"; });
}

// Sinks may hand in and cancel: a group whose first token cancels it, and whose end submits the next.
TEST_F(EngineLoopTest, SinksMayCallTheLoop) {
  open();
  std::atomic<int> ended{0};
  std::function<void(int)> next = [&](int left) {
    loop_->submit({request(1000)}, [&, left](const Update& update) {
      if (update.output.finish == Finish::none) return loop_->cancel(update.ticket);
      ++ended;
      if (left > 0) next(left - 1);
    });
  };
  next(20);
  EXPECT_TRUE(soon([&] { return ended >= 21; }));
  EXPECT_TRUE(loop_->drain(Clock::now() + seconds(60)));
}

class CountingObserver final : public LoopObserver {
 public:
  void taken(RequestId, double queued_s) override {
    ++taken_requests;
    EXPECT_GE(queued_s, 0.0);
  }
  void refused(Ticket, const Refusal&) override { ++refused_groups; }
  void output(const TextOutput& output, double) override { tokens += static_cast<int>(output.tokens.size()); }
  void turn(Session&, double) override { ++turns; }
  int taken_requests = 0, refused_groups = 0, tokens = 0, turns = 0;
};

TEST_F(EngineLoopTest, TheObserverSeesEveryRequest) {
  CountingObserver observer;
  loop_ = std::make_unique<EngineLoop>(std::make_unique<FakeSession>(), &observer);
  loop_->submit({request(3), request(4)}, ear_.sink());
  loop_->submit({request(1, "bad")}, ear_.sink());
  ASSERT_TRUE(ear_.wait_ended(3));
  loop_->stop();
  EXPECT_EQ(observer.taken_requests, 2);
  EXPECT_EQ(observer.refused_groups, 1);
  EXPECT_EQ(observer.tokens, 7);
  EXPECT_GE(observer.turns, 4);
}

// Many threads at once, half of their groups cancelled somewhere on the way: every group ends exactly once.
TEST_F(EngineLoopTest, ThreadsMayDoEverythingAtOnce) {
  open();
  constexpr int kThreads = 4;
  constexpr int kGroups = 200;
  std::atomic<int> ends{0};
  std::atomic<int> posts{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kGroups; ++i) {
        const Ticket ticket = loop_->submit({request(1 + (i + t) % 7)}, [&](const Update& update) {
          if (update.refusal != nullptr || update.output.finish != Finish::none) ++ends;
        });
        if (i % 2 == 0) loop_->cancel(ticket);
        if (i % 5 == 0) loop_->post([&](Session&) { ++posts; });
        EXPECT_GE(loop_->pulse().unfinished, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(loop_->drain(Clock::now() + seconds(60)));
  EXPECT_EQ(ends, kThreads * kGroups);
  EXPECT_EQ(posts, kThreads * kGroups / 5);
  EXPECT_EQ(fake_->wrong_thread, 0);
}

}  // namespace
}  // namespace quire::server
