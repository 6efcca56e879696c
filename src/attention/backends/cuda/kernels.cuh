// How a pair of head dims is compiled: the tiles and stages of each form, and the table that attend_*.cu
// fill. Budgets are those of Hopper: 227 KB of shared memory a block. The boxes name no GPU that has less.
#pragma once

#include "attention/backends/cuda/attend_kernel.cuh"
#include "attention/backends/cuda/launch.h"

namespace quire::attention::cuda {

// How the line of key tiles is dealt (step.h): a shorter part spends more on joining than it spares in
// reading, and a unit costs as much as a few tiles beside its own.
struct Shares {
  std::int32_t least_tiles = 1;
  std::int32_t unit_cost = 0;
};
inline constexpr Shares kNarrowShares = {2, 3};
inline constexpr Shares kWideShares = {12, 2};
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

template <class C>
Kernel attend_kernel_of(Shares shares) {
  return kernel_of<C>(shares, reinterpret_cast<const void*>(&attend<C>));
}
template <class Narrow, class NarrowE4m3, class Wide, class WideE4m3>
Kernel pick(Form form, bool fp8) {
  if (form == Form::narrow)
    return fp8 ? attend_kernel_of<NarrowE4m3>(kNarrowShares) : attend_kernel_of<Narrow>(kNarrowShares);
  return fp8 ? attend_kernel_of<WideE4m3>(kWideShares) : attend_kernel_of<Wide>(kWideShares);
}

// Each in a file of its own.
template <class T>
Kernel kernels_64(Form form, bool fp8);
template <class T>
Kernel kernels_128(Form form, bool fp8);
template <class T>
Kernel kernels_192(Form form, bool fp8);  // 192/128
template <class T>
Kernel kernels_256(Form form, bool fp8);
template <class T>
Kernel kernels_latent(Form form, bool fp8);  // 576/512, one form for all

}  // namespace quire::attention::cuda
