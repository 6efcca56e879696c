// The CPU's Stream: a bounded queue with one worker, and a team of helpers for loops inside a task.
// ops/cpu and attention/backends put their work on it through enqueue(); nobody else includes this.
//
// A task is a small trivially copyable closure: captured by value, at most kTaskBytes, no allocation to
// queue, record or run it. What it points to must stay valid until the stream passed it (or, captured,
// for the life of the graph).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "platform/platform.h"

namespace quire::platform::cpu {

inline constexpr std::size_t kTaskBytes = 1024;

// The compute threads of one stream. Indices are 0..threads-1; index 0 is the worker itself.
class Team {
 public:
  virtual ~Team() = default;
  virtual int threads() const = 0;
  // Calls body(context, index, thread) for every index in [0, count), in any order, each once; returns
  // when all are done. Indices are handed out by an atomic counter, so a result may not depend on which
  // thread ran an index. No nesting.
  using Body = void (*)(void* context, std::int64_t index, int thread);
  virtual void run(std::int64_t count, Body body, void* context) = 0;

  // for_each(n, [&](int64_t index, int thread) {...}): the closure lives on the caller's stack.
  template <class F>
  void for_each(std::int64_t count, F&& f) {
    run(
        count, [](void* c, std::int64_t i, int t) { (*static_cast<std::remove_reference_t<F>*>(c))(i, t); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
};

struct Task {
  void (*run)(const void* closure, Team& team) = nullptr;
  std::uint32_t bytes = 0;
  alignas(16) std::byte closure[kTaskBytes];
};

class CpuStream : public Stream {
 public:
  // f(Team&) runs on the worker, in order. F must be trivially copyable and at most kTaskBytes.
  template <class F>
  void enqueue(F f) {
    static_assert(std::is_trivially_copyable_v<F>, "a task owns nothing: capture pointers and values");
    static_assert(sizeof(F) <= kTaskBytes, "a task is at most kTaskBytes");
    Task task;
    task.run = [](const void* closure, Team& team) { (*static_cast<const F*>(closure))(team); };
    task.bytes = sizeof(F);
    std::memcpy(static_cast<void*>(task.closure), static_cast<const void*>(&f), sizeof(F));
    push(task);
  }
  virtual int threads() const = 0;

 protected:
  virtual void push(const Task& task) = 0;  // queues, or records while capturing; blocks when full
};

// REQUIRES: stream belongs to a CPU device.
CpuStream& as_cpu(Stream& stream);

}  // namespace quire::platform::cpu
