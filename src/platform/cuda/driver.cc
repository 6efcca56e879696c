#include "platform/cuda/driver.h"

#include <fmt/core.h>

#include "base/check.h"
#include "platform/cuda/stream.h"

namespace quire::platform::cuda {
namespace {

// The functions of virtual memory management are as they were in CUDA 10.2; 12.0 is the oldest driver that a
// runtime of ours starts with.
constexpr unsigned kVersion = 12000;

template <class F>
void look_up(const char* name, F& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  QUIRE_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result));
  QUIRE_CHECK(result == cudaDriverEntryPointSuccess && found != nullptr, "the driver has no {}", name);
  function = reinterpret_cast<F>(found);
}

Driver look_up_all() {
  Driver driver;
  look_up("cuMemAddressReserve", driver.address_reserve);
  look_up("cuMemAddressFree", driver.address_free);
  look_up("cuMemCreate", driver.create);
  look_up("cuMemRelease", driver.release);
  look_up("cuMemMap", driver.map);
  look_up("cuMemUnmap", driver.unmap);
  look_up("cuMemSetAccess", driver.set_access);
  look_up("cuMemGetAllocationGranularity", driver.granularity);
  look_up("cuGetErrorString", driver.error_string);
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver found = look_up_all();
  return found;
}

void fail(const char* file, int line, const char* call, CUresult error) {
  const char* text = nullptr;
  driver().error_string(error, &text);
  check_failed(file, line, call,
               fmt::format("{} ({})", text == nullptr ? "unknown" : text, static_cast<int>(error)));
}

}  // namespace quire::platform::cuda
