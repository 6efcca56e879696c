// Products with few activation rows: the weights' way from memory is all that counts.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace quire::ops::cuda {

// Rows up to which gemv is the faster way (docs/PERFORMANCE.md).
inline constexpr std::int64_t kGemvRows = 16;

// Whether gemv takes these operands: all weights bf16, all f16 or all fp8_e4m3, rows of whole groups (32
// columns; fp8: 64) at 16-byte places, x of 16-bit elements at 16-byte places, at most kGemvRows rows. x must
// be of the weights' type (bf16 for fp8 weights).
bool gemv_takes(const Linear& args);
// One launch for all targets. counters: two, device memory, zero before the first launch and after each.
// REQUIRES: gemv_takes, sm_90.
void gemv(const Linear& args, std::int32_t* counters, int multiprocessors, platform::Stream& stream);

}  // namespace quire::ops::cuda
