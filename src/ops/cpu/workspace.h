// The memory that ops use between the start and the end of one call. Calls run one after another on the
// stream, so all of them share the same bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/carver.h"
#include "base/check.h"
#include "ops/cpu/products.h"
#include "ops/ops.h"

namespace quire::ops::cpu {

class Workspace {
 public:
  Workspace() = default;
  Workspace(void* data, std::int64_t bytes, const OpsLimits& limits)
      : data_(data), bytes_(bytes), limits_(limits) {}
  const OpsLimits& limits() const { return limits_; }
  // Zero when the workspace is set; whoever writes it puts the zeros back.
  std::int32_t* counts(int thread) const;  // [threads, vocab]
  // A thread's panel of dequantised weights (products.h).
  float* panel(int thread) const;
  // The rest, free for every call.
  char* scratch() const { return static_cast<char*>(data_) + fixed_bytes(limits_); }
  std::int64_t scratch_bytes() const { return bytes_ - fixed_bytes(limits_); }

  static std::int64_t counts_bytes(const OpsLimits& limits);
  static std::int64_t panel_bytes(const OpsLimits& limits);  // of one thread
  static std::int64_t fixed_bytes(const OpsLimits& limits) {
    return counts_bytes(limits) + panel_bytes(limits) * limits.threads;
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  OpsLimits limits_;
};

inline std::int64_t align64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline std::int64_t Workspace::counts_bytes(const OpsLimits& limits) {
  return align64(limits.vocab * 4) * limits.threads;
}
inline std::int32_t* Workspace::counts(int thread) const {
  QUIRE_CHECK(thread < limits_.threads, "thread {} of {} that the workspace was made for", thread,
              limits_.threads);
  return reinterpret_cast<std::int32_t*>(static_cast<char*>(data_) + thread * align64(limits_.vocab * 4));
}

inline std::int64_t Workspace::panel_bytes(const OpsLimits& limits) {
  const std::int64_t cols = std::max(limits.max_cols, limits.max_hidden);
  return std::max(align64(kPanelBytes),
                  align64(4 * 4 * cols));  // panel_rows() is 4 where four rows are over it
}
inline float* Workspace::panel(int thread) const {
  QUIRE_CHECK(thread < limits_.threads, "thread {} of {} that the workspace was made for", thread,
              limits_.threads);
  return reinterpret_cast<float*>(static_cast<char*>(data_) + counts_bytes(limits_) +
                                  thread * panel_bytes(limits_));
}

using Carver = quire::Carver<>;

}  // namespace quire::ops::cpu
