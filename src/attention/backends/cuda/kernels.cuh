// How a pair of head dims is compiled: the tiles and stages of each form, among which attend_*.cu choose.
// Budgets are those of Hopper: 227 KB of shared memory a block. The boxes name no GPU that has less.
#pragma once

#include "attention/backends/cuda/launch.h"
#include "attention/backends/cuda/narrow_kernel.cuh"
#include "attention/backends/cuda/wide_kernel.cuh"

namespace quire::attention::cuda {

// How the line of key tiles is dealt (step.h): a shorter part spends more on joining than it spares in
// reading, and a unit costs as much as a few tiles beside its own.
struct Shares {
  std::int32_t least_tiles = 1;
  std::int32_t unit_cost = 0;
};
inline constexpr Shares kNarrowShares = {2, 3};
// Warps of two fragments have twice the products a tile, but wait as long as others for a unit's first rows.
template <int kFragments>
inline constexpr Shares kWideShares = {12, kFragments == 2 ? 10 : 4};
inline constexpr Shares kLatentShares = {8, 1};  // a piece's sums are 128 KB

template <class C>
Kernel kernel_of(Shares shares, const void* function) {
  Kernel kernel;
  kernel.tile_rows = C::kTileRows;
  kernel.threads = C::kThreads;
  kernel.shared_bytes = C::kSharedBytes;
  kernel.v_pad = C::kV;
  kernel.least_tiles = shares.least_tiles;
  kernel.unit_cost = shares.unit_cost;
  kernel.function = function;
  return kernel;
}

// One form of one pair of head dims: the cache in T, or in e4m3.
template <class Wide>
Kernel wide_kernel_of() {
  return kernel_of<Wide>(kWideShares<Wide::kFragments>, reinterpret_cast<const void*>(&attend_wide<Wide>));
}
template <class Narrow>
Kernel narrow_kernel_of() {
  return kernel_of<Narrow>(kNarrowShares, reinterpret_cast<const void*>(&attend_narrow<Narrow>));
}
template <class Few, class Narrow, class Wide>
Kernel pick(Form form) {
  if (form == Form::few) return narrow_kernel_of<Few>();
  return form == Form::narrow ? narrow_kernel_of<Narrow>() : wide_kernel_of<Wide>();
}

}  // namespace quire::attention::cuda
