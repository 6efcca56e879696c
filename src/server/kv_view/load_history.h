// The load of the last minutes, about one sample a second while there is work: for whoever looks later.
// Thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace quire::server {

struct LoadSample {
  double time = 0.0;  // unix seconds
  std::int64_t output_tokens = 0;
  std::int64_t prompt_tokens = 0;  // computed
  std::int64_t cached_tokens = 0;
  std::int64_t looked_up_tokens = 0;
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  double kv_held = 0.0;
  double kv_used = 0.0;
};

class LoadHistory {
 public:
  static constexpr std::size_t kSamples = 400;
  static constexpr double kPeriod = 1.0;  // seconds

  // Keeps it when the last one is a period old. After a pause, what was last is kept once more first: nothing
  // happened meanwhile.
  void note(const LoadSample& sample);
  std::vector<LoadSample> samples() const;  // oldest first

 private:
  void add(const LoadSample& sample);

  mutable std::mutex mutex_;
  std::array<LoadSample, kSamples> ring_;
  std::size_t count_ = 0;  // ever added
};

}  // namespace quire::server
