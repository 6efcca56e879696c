#include "server/kv_view/load_history.h"

#include <algorithm>

namespace quire::server {

void LoadHistory::add(const LoadSample& sample) { ring_[count_++ % kSamples] = sample; }

void LoadHistory::note(const LoadSample& sample) {
  const std::lock_guard lock(mutex_);
  if (count_ > 0) {
    LoadSample last = ring_[(count_ - 1) % kSamples];
    if (sample.time < last.time + kPeriod) return;
    if (sample.time > last.time + 3 * kPeriod) {
      last.time = sample.time - kPeriod;
      last.running = last.waiting = 0;
      add(last);
    }
  }
  add(sample);
}

std::vector<LoadSample> LoadHistory::samples() const {
  const std::lock_guard lock(mutex_);
  std::vector<LoadSample> samples;
  const std::size_t kept = std::min(count_, kSamples);
  samples.reserve(kept);
  for (std::size_t i = count_ - kept; i < count_; ++i) samples.push_back(ring_[i % kSamples]);
  return samples;
}

}  // namespace quire::server
