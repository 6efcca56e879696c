// EngineLoop: the one thread that owns a Session and is its only caller. Others hand in requests and get what
// becomes known through a sink.
//
// Requests are prepared (rendered, tokenised, their schemas compiled) on threads of their own, in order of
// arrival. Those with a schema or forced tools have one, and those with a long prompt another, so that what
// takes seconds holds up only its like.
//
// A turn: cancels, posted functions, requests that are prepared, one step, then the step's outputs to their
// sinks. With nothing to do the thread sleeps until it is woken; it never polls.
//
// Every call but the constructor's is thread safe, and none waits for a step (drain and stop apart).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quire/session.h"

namespace quire::server {

using Ticket = std::uint64_t;  // of a group of requests that were submitted together; never 0

// Why a group was not taken. Nothing of it runs then.
struct Refusal {
  enum class Why : std::uint8_t {
    invalid,     // can never run: the prompt, a parameter, its length (400)
    never_fits,  // legal for the model, but more than this server's KV memory can hold (400)
    queue_full,  // later it may (429)
    draining,    // this server takes no more (503)
  };
  Why why = Why::invalid;
  std::string message;
  double retry_after_s = 0.0;  // queue_full: an estimate from the requests that ended lately, at least 1
};

// What became known about one request of a group.
struct Update {
  Ticket ticket = 0;
  std::size_t index = 0;             // of the request in its group
  const Refusal* refusal = nullptr;  // the whole group (index 0): the only update there is
  TextOutput output;  // without a refusal; the last one of a request has `finish` and the totals
};

// What of a prompt takes time to prepare: its text or conversation.
std::size_t prompt_bytes(const TextRequest& request);

// Called on the loop's thread; must not block, nor call drain() or stop(). Destroyed there after the group's
// last update, or where submit() was called when that fails at once.
using Sink = std::function<void(Update update)>;

// Follows every request, for metrics. Calls are on the loop's thread.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  // `queued_s`: from submit() until the session took it.
  virtual void taken(RequestId id, double queued_s) = 0;
  virtual void refused(Ticket ticket, const Refusal& refusal) = 0;
  virtual void output(const TextOutput& output, double now_s) = 0;
  // After each turn that ran a step.
  virtual void turn(Session& session, double step_s) = 0;
};

struct Pulse {
  bool idle = false;          // sleeping with nothing to do: it would answer at once
  double since_turn_s = 0.0;  // since a turn ended that ran a step or had nothing to run
  bool draining = false;
  std::int64_t turns = 0;
  std::int64_t unfinished = 0;  // requests that were taken and have not ended
  std::int64_t waiting = 0;     // groups not yet handed to the session
};

class EngineLoop {
 public:
  // `observer` may be null; it outlives the loop. The thread starts at once.
  explicit EngineLoop(std::unique_ptr<Session> session, LoopObserver* observer = nullptr);
  ~EngineLoop();  // stop()
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // All of the group or none. REQUIRES at least one request. One without any prompt is a further answer to
  // the prompt before it, and is prepared with that: until the session takes the group a prompt is there
  // once, however many answers it is to get. What the session took, each with tokens of its own, the queue's
  // room bounds.
  Ticket submit(std::vector<TextRequest> requests, Sink sink);
  // Ends what is unfinished of the group: each of its requests gets a last update (Finish::cancelled) unless
  // it ended by itself before. Unknown and ended tickets are fine.
  void cancel(Ticket ticket);
  // Runs on the loop's thread between steps, in order. Must be short: running answers wait meanwhile. Dropped
  // when the loop has stopped.
  void post(std::function<void(Session&)> function);

  // Runs beside the steps, on the thread that prepares requests with prompts of so many bytes; calls only
  // what a Session allows on any thread. Dropped when the loop has stopped.
  void beside(std::size_t bytes, std::function<void(const Session&)> function);

  Pulse pulse() const;
  // What never changes after opening, without a turn: any thread may read it.
  const EngineInfo& info() const { return info_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  ToolFormat tool_format() const { return tool_format_; }

  // From now on groups are refused, also those that the session has not taken yet; what it took goes on.
  void begin_drain();
  // Waits until nothing is unfinished; at the deadline cancels what is. True: all ended by themselves.
  bool drain(std::chrono::steady_clock::time_point deadline);
  // Cancels all and ends the thread; sinks got their last update before it returns.
  void stop();

 private:
  class Impl;
  EngineInfo info_;
  GenerationDefaults defaults_;
  ToolFormat tool_format_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
