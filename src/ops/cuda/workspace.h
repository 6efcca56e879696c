// The memory that ops use between the start and the end of one call. Calls run one after another on the
// stream, so all of them share the same bytes; cuBLASLt has a part of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/carver.h"
#include "ops/ops.h"

namespace quire::ops::cuda {

// Counters of gemv, zero between calls.
inline constexpr std::int64_t kCounterBytes = 256;
// What cuBLASLt is offered; its heuristics for this chip use up to 32 MiB.
inline constexpr std::int64_t kBlasBytes = std::int64_t{32} << 20;
// Weights that are expanded to bf16 on their way to cuBLASLt pass through in panels of this size.
inline constexpr std::int64_t kPanelBytes = std::int64_t{64} << 20;

class Workspace {
 public:
  Workspace() = default;
  Workspace(void* data, std::int64_t bytes, const OpsLimits& limits)
      : data_(static_cast<char*>(data)), bytes_(bytes), limits_(limits) {}
  const OpsLimits& limits() const { return limits_; }
  void* blas() const { return data_; }
  std::int32_t* counters() const { return reinterpret_cast<std::int32_t*>(data_ + kBlasBytes); }
  char* scratch() const { return data_ + kBlasBytes + kCounterBytes; }
  std::int64_t scratch_bytes() const { return bytes_ - kBlasBytes - kCounterBytes; }

 private:
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
  OpsLimits limits_;
};

using Carver = quire::Carver<256>;

// What each part of CudaOps needs of the scratch.
std::int64_t linear_workspace_bytes(const OpsLimits& limits);
std::int64_t moe_workspace_bytes(const OpsLimits& limits);

}  // namespace quire::ops::cuda
