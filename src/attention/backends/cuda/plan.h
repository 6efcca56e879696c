// The host side of a plan: which form serves a step, and where everything lies in the PlanBuffer. Nothing
// here reads a length; the plan itself is made on the device (plan_kernel.cu).
#pragma once

#include <cstdint>

#include "attention/backends/cuda/launch.h"
#include "attention/contract.h"

namespace quire::attention::cuda {

// A kernel and the grid it is launched with: as many blocks as the device holds at once (of a cascade's
// prefix: prefix_launch()).
struct Launch {
  Kernel kernel;
  std::int32_t parts = 0;
};

struct Geometry {
  std::int32_t q_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t ratio = 1;
  std::int32_t qk_dim = 0;
  std::int32_t v_dim = 0;
  bool cascade =
      false;  // prefix groups may be followed: decode and verify calls of plain causal or full masks
  Launch few;
  Launch narrow;
  Launch wide;
  Launch prefix;  // of a cascade
};

// How the prefixes of a cascade are dealt to a kernel of many rows: in equal parts, since their pieces are
// joined by a kernel of its own that all multiprocessors share, and a piece costs the same wherever its unit
// ends. One block on each of `cores` multiprocessors: beside it is room for blocks of the suffix, which wait
// for memory while the prefix multiplies.
Launch prefix_launch(const Launch& wide, std::int32_t cores);

// The form for steps of at most max_q queries a sequence: the first of few, narrow and wide whose rows hold a
// group's heads.
const Launch& launch_for(const Geometry& geometry, std::int32_t max_q);

// Upper bounds of a step, from a StepShape or from Limits.
struct Bounds {
  std::int32_t batch = 0;
  std::int32_t total_q = 0;
};

// Rows of q computed in two parts and joined: results of each in float32.
struct Cascade {
  Plan prefix;
  std::int32_t* suffix_begin = nullptr;  // [batch]
  float* sums[2] = {};                   // prefix, suffix: [total_q, q_heads, v_dim]
  float* lses[2] = {};                   // [total_q, q_heads]
};

struct Layout {
  Plan plan;
  Cascade cascade;
  std::int64_t bytes = 0;
};
// `base` may be null: then only `bytes` means something.
Layout make_layout(const Geometry& geometry, const Launch& launch, const Bounds& bounds, void* base);
std::int64_t plan_bytes(const Geometry& geometry, const Limits& limits);

// The groups of a shape that a cascade can follow; none when the shape forbids it.
Groups groups_of(const Geometry& geometry, const StepShape& shape);

// Whether 16 bytes at a time may be read: every base and stride a multiple.
bool is_aligned(const void* base, std::int64_t bytes);

}  // namespace quire::attention::cuda
