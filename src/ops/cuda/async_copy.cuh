// Shared memory as the asynchronous copies see it.
#pragma once

#include <cstdint>

namespace quire::ops::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace quire::ops::cuda
