// The kernels of the cuda row, as its host side calls them. Every launch may be captured.
#pragma once

#include <cstdint>

#include "attention/backends/cuda/step.h"
#include "platform/platform.h"
#include "tensor/dtype.h"

namespace quire::attention::cuda {

inline constexpr std::int32_t kMostGroups = 16;

// Prefix groups of a cascade: sequences [begin, end) share their first `shared` keys.
struct Groups {
  std::int32_t count = 0;  // 0: no cascade
  std::int32_t begin[kMostGroups] = {};
  std::int32_t end[kMostGroups] = {};
  std::int32_t shared[kMostGroups] = {};
};

struct PlanParams {
  Step step;
  Plan plan;
  std::int32_t tile_rows = 0;
  std::int32_t ratio = 1;
  std::int32_t kv_heads = 0;
  std::int32_t least_tiles = 1;  // of a part
  std::int32_t unit_cost = 0;
  // With groups the plan is that of their prefixes, and suffix_begin [batch] gets the first key that each
  // sequence has to compute itself.
  Groups groups;
  std::int32_t* suffix_begin = nullptr;
};
void launch_plan(const PlanParams& params, platform::Stream& stream);

// One compiled form of the attention kernel.
struct Kernel {
  std::int32_t tile_rows = 0;  // packed rows of a unit
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
  std::int32_t v_pad = 0;        // floats of a row of partial sums
  std::int32_t least_tiles = 1;  // what a part should at least have: below, joining costs more than it spares
  std::int32_t unit_cost = 0;    // what starting and finishing a unit costs, in tiles
  const void* function = nullptr;
};

// 8 or 16 rows a unit, warps share the keys / many rows, each warp its own.
enum class Form : std::uint8_t { few, narrow, wide };

// The kernels of one pair of head dims, compiled in attend_*.cu; smaller dims are padded to them. T is the
// type of q, and of K and V unless they are e4m3.
struct Bf16;
struct F16;
template <class T>
Kernel kernels_64(Form form, bool fp8);
template <class T>
Kernel kernels_128(Form form, bool fp8);
template <class T>
Kernel kernels_192(Form form, bool fp8);  // 192/128
template <class T>
Kernel kernels_256(Form form, bool fp8);
template <class T>
Kernel kernels_latent(Form form, bool fp8);  // 576/512, one kernel for all forms

// The third kernel of a cascade. Results of rows are normalised; of the prefix only those of units that no
// part cut, the others are pieces in the plan.
struct CascadeJoin {
  RunParams run;               // the plan is the prefixes'; out, lse and sink are the step's
  const float* sums[2] = {};   // prefix, suffix: [total_q, q_heads, v_dim]
  const float* lses[2] = {};   // [total_q, q_heads]
  std::int32_t tile_rows = 0;  // of the kernel that computed the prefixes
  std::int32_t v_pad = 0;
  DType type = DType::bf16;  // of out: bf16 or f16
};
void launch_cascade_join(const CascadeJoin& params, platform::Stream& stream);

}  // namespace quire::attention::cuda
