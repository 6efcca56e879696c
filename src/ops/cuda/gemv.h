// Products with few activation rows: the weights' way from memory is all that counts.
#pragma once

#include <cstdint>

#include "ops/cuda/round_rows.h"
#include "ops/ops.h"

namespace quire::ops::cuda {

// Rows up to which gemv is the faster way (docs/PERFORMANCE.md).
inline constexpr std::int64_t kGemvRows = 16;

// Whether gemv takes these operands: all weights bf16, all f16 or all fp8_e4m3, rows of whole groups (32
// columns; fp8: 64) at 16-byte places, x of 16-bit elements at 16-byte places, at most kGemvRows rows. x must
// be of the weights' type (bf16 for fp8 weights).
bool gemv_takes(const Linear& args);

// Device memory, borrowed.
struct GemvScratch {
  std::int32_t* counters;  // two: zero before the first launch and after each
  RoundedRows half;        // x in f16, where the weights are e4m3 and the kernel does not convert it itself
};
// One launch for all targets, and where `half` is needed one before it. REQUIRES: gemv_takes, sm_90.
void gemv(const Linear& args, const GemvScratch& scratch, int multiprocessors, platform::Stream& stream);

}  // namespace quire::ops::cuda
