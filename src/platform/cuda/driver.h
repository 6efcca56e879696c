// The few functions of the CUDA driver that the runtime has no name for: addresses reserved apart from the
// memory behind them. Looked up through the runtime when first used, so that the program links no driver and
// starts on machines without one.
#pragma once

#include <cuda.h>

namespace quire::platform::cuda {

struct Driver {
  decltype(&::cuMemAddressReserve) address_reserve = nullptr;
  decltype(&::cuMemAddressFree) address_free = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&::cuGetErrorString) error_string = nullptr;
};

// REQUIRES: a device was opened. A driver without one of them is older than the runtime allows: aborts.
const Driver& driver();

[[noreturn]] void fail(const char* file, int line, const char* call, CUresult error);

}  // namespace quire::platform::cuda

#define QUIRE_CUDA_DRIVER_CHECK(call)                                         \
  do {                                                                        \
    if (const CUresult cuda_result_ = (call); cuda_result_ != CUDA_SUCCESS)   \
      ::quire::platform::cuda::fail(__FILE__, __LINE__, #call, cuda_result_); \
  } while (false)
