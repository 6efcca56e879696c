// The inside of an EngineLoop: what the threads share (under one mutex) and what only the loop's thread
// knows.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "server/loop/loop.h"
#include "server/threads/background.h"

namespace quire::server {

class EngineLoop::Impl {
 public:
  Impl(std::unique_ptr<Session> session, LoopObserver* observer);
  ~Impl();

  Ticket submit(std::vector<TextRequest> requests, Sink sink);
  void cancel(Ticket ticket);
  void post(std::function<void(Session&)> function);
  void beside(std::size_t bytes, std::function<void(const Session&)> function);
  Pulse pulse() const;
  void begin_drain();
  bool drain(Clock::time_point deadline);
  void stop();

 private:
  // A group on its way to the session.
  struct Group {
    Ticket ticket = 0;
    std::vector<TextRequest> requests;
    Sink sink;
    Clock::time_point submitted;
    std::optional<Error> error = {};  // why it cannot be prepared
    bool cancelled = false;           // while it was prepared
    bool late = false;                // handed in when draining had begun
  };
  // A group that the session took.
  struct Active {
    Sink sink;
    std::vector<RequestId> ids;  // 0: has ended
    std::size_t unfinished = 0;
  };
  struct Inbox {
    std::vector<Group> groups;
    std::vector<Ticket> cancels;
    std::vector<std::function<void(Session&)>> posts;
    bool empty() const { return groups.empty() && cancels.empty() && posts.empty(); }
  };

  Background& preparer(const std::vector<TextRequest>& requests);
  void prepare(Group& group) const;
  void arrive(Group group);
  void run();
  bool turn();  // false: nothing to do
  void take_inbox();
  void apply_cancels();
  void cancel_active(Ticket ticket);
  bool cancel_arriving(Ticket ticket);
  void cancel_everything();
  void admit();
  void hand_over(Group& group);
  Result<std::vector<RequestId>> submit_all(Group& group);
  std::optional<Refusal> no_room_for(const Group& group) const;
  void refuse(Group& group, Refusal refusal);
  void deliver(TextOutput& output);
  void note_finished();
  double retry_after() const;
  void publish(bool alive);
  void sleep();
  std::int64_t unfinished() const { return static_cast<std::int64_t>(places_.size()); }

  std::unique_ptr<Session> session_;
  LoopObserver* observer_;
  std::atomic<Ticket> next_ticket_{1};

  mutable std::mutex mutex_;
  std::condition_variable wake_;   // the loop's thread waits
  std::condition_variable ended_;  // drain() waits
  Inbox inbox_;
  std::unordered_map<Ticket, bool> preparing_;  // whether it was cancelled meanwhile
  Pulse pulse_;                                 // since_turn_s apart
  Clock::time_point last_turn_;
  bool draining_ = false;
  bool cancel_all_ = false;
  bool stopping_ = false;
  bool stopped_ = false;

  // The loop's thread only.
  Inbox taken_;
  std::deque<Group> arriving_;
  std::unordered_map<Ticket, Active> active_;
  std::unordered_map<RequestId, std::pair<Ticket, std::size_t>> places_;
  std::vector<TextOutput> outputs_;
  std::array<Clock::time_point, 64> finished_{};  // a ring: when requests ended lately
  std::size_t finished_count_ = 0;

  std::mutex join_mutex_;
  std::thread thread_;
  // Render, tokenise and compile, beside the steps; a schema or a prompt that takes seconds holds up only
  // others like it.
  Background prepares_text_;
  Background prepares_long_text_;
  Background prepares_guides_;
};

}  // namespace quire::server
