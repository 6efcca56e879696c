// The loops that measure what this processor can do at best: reading, and multiply-adds from the
// first-level cache. Compiled once per instruction set (loops_*.cc).
#pragma once

#include <cstdint>

namespace quire::attention::bench {

struct Loops {
  // Reads [data, data + bytes), bytes a multiple of 4096; the sum keeps the reads alive.
  std::uint64_t (*read)(const void* data, std::int64_t bytes);
  // repeats times a register tile of rows x 2 vectors over kDepth steps; returns the flops done.
  double (*multiply)(float* panels, std::int64_t repeats);
};

inline constexpr int kDepth = 128;         // steps of one pass
inline constexpr int kPanelFloats = 8192;  // of scratch for multiply, 32 KiB

const Loops& loops_portable();
const Loops& loops_avx2();
const Loops& loops_avx512();

}  // namespace quire::attention::bench
