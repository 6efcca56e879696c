// WorkerTeam: the compute threads of one stream. The thread that calls run() is member 0; helpers join in
// as they wake and leave when no index is left, so a helper that the system keeps from running delays
// nothing but the index that it holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "platform/cpu/stream.h"

namespace quire::platform::cpu {

class WorkerTeam final : public Team {
 public:
  // Starts threads - 1 helpers; std::system_error where the system gives no more threads.
  explicit WorkerTeam(int threads);
  ~WorkerTeam() override;  // joins them
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  int threads() const override { return static_cast<int>(helpers_.size()) + 1; }
  void run(std::int64_t count, Body body, void* context) override;

 private:
  struct alignas(64) Padded {
    std::atomic<std::int64_t> value{0};
  };
  void join();
  void helper_loop(int thread);
  void work(int thread);

  // The loop in progress. Written by member 0 while remaining_ is 0 and no index is out; whoever takes an
  // index by lowering remaining_ may read them until he has counted it in finished_.
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::int64_t count_ = 0;

  Padded remaining_;  // indices not yet taken
  Padded finished_;   // indices done
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> wake_{0};  // moves when sleepers should look again
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace quire::platform::cpu
