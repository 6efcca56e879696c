// The CPU's Stream, Graph and Event. Made by the device; nobody else includes this.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "platform/cpu/stream.h"
#include "platform/cpu/team.h"

namespace quire::platform::cpu {

// Recorded closures, one after another at their real size.
class ClosureGraph final : public Graph {
 public:
  std::int64_t nodes() const override { return nodes_; }
  void add(const Task& task);
  void run(Team& team) const;

 private:
  std::vector<std::byte> entries_;  // [header | closure, padded to 16 bytes]...
  std::int64_t nodes_ = 0;
};

// Counts its recordings; done when the worker has passed the last one.
class CountedEvent final : public Event {
 public:
  bool done() const override;
  void wait() override;
  // Host side: the number that the next recording completes.
  std::uint32_t next() { return ++recorded_; }
  std::uint32_t recorded() const { return recorded_; }
  // Any thread: until recording `number` is done.
  void await(std::uint32_t number);
  void complete(std::uint32_t number);  // worker

 private:
  std::uint32_t recorded_ = 0;
  std::atomic<std::uint32_t> completed_{0};
};

// One producer (the thread that uses the stream), one consumer (the worker), a ring between them.
class WorkerStream final : public CpuStream {
 public:
  explicit WorkerStream(int threads);
  ~WorkerStream() override;  // runs what is queued, then joins

  void copy(void* target, const void* source, std::int64_t bytes) override;
  void fill(void* target, std::uint8_t byte, std::int64_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(Graph& graph) override;
  std::int64_t busy_ns() const override { return busy_ns_.load(std::memory_order_relaxed); }
  int threads() const override { return team_.threads(); }

 protected:
  void push(const Task& task) override;

 private:
  // A forward pass of 30 layers is some 350 tasks: one eager step fits, and the ring stays half a megabyte.
  static constexpr std::uint32_t kQueueTasks = 512;
  void worker_loop();

  std::unique_ptr<Task[]> ring_;
  alignas(64) std::atomic<std::uint32_t> pushed_{0};     // tasks ever queued
  alignas(64) std::atomic<std::uint32_t> completed_{0};  // tasks ever finished
  std::atomic<std::int64_t> busy_ns_{0};
  std::atomic<bool> stop_{false};
  std::unique_ptr<ClosureGraph> capture_;
  WorkerTeam team_;
  std::thread worker_;
};

}  // namespace quire::platform::cpu
