// CUDA devices: which there are, whether this build has code for them, and their memory.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/check.h"
#include "platform/cuda/library.h"
#include "platform/cuda/memory.h"
#include "platform/cuda/stream.h"
#include "platform/cuda/stream_impl.h"
#include "platform/cuda_archs.h"
#include "platform/entry.h"

namespace quire::platform::cuda {
namespace {

constexpr std::string_view kTargets = QUIRE_CUDA_ARCHS;  // "90a" or "80, 90a"

// Why CUDA has no device here; empty when it has some.
std::string why_none(cudaError_t error, int count) {
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
      return fmt::format("no driver ({})", why_no_driver());
    return fmt::format("the driver is for CUDA {}.{} and this build needs {}.{}", driver / 1000,
                       driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) return "no device";
  if (error != cudaSuccess) return fmt::format("no device ({})", cudaGetErrorString(error));
  return "";
}

struct Found {
  int count = 0;
  std::string why_none;
};

Found find_devices() {
  Found found;
  const cudaError_t error = cudaGetDeviceCount(&found.count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    found.count = 0;
  }
  found.why_none = why_none(error, found.count);
  return found;
}

// Machine code runs on its own generation from its own number on; with the `a` on that number only.
bool target_runs_on(std::string_view target, int arch) {
  int number = 0;
  const auto [rest, error] = std::from_chars(target.data(), target.data() + target.size(), number);
  if (error != std::errc()) return false;
  const bool exact = rest != target.data() + target.size();
  return exact ? number == arch : number / 10 == arch / 10 && number <= arch;
}

bool build_runs_on(int arch) {
  std::string_view targets = kTargets;
  while (!targets.empty()) {
    const std::size_t end = std::min(targets.find(", "), targets.size());
    if (target_runs_on(targets.substr(0, end), arch)) return true;
    targets.remove_prefix(std::min(end + 2, targets.size()));
  }
  return false;
}

DeviceInfo describe(int ordinal) {
  cudaDeviceProp properties{};
  QUIRE_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  DeviceInfo info;
  info.kind = Kind::cuda;
  info.ordinal = ordinal;
  info.arch = properties.major * 10 + properties.minor;
  info.name = properties.name;
  info.cores = properties.multiProcessorCount;
  info.host_memory = false;
  info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  info.page_order = PageOrder::page_first;
  return info;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(DeviceInfo info) : info_(std::move(info)) {}
  const DeviceInfo& info() const override { return info_; }
  MemoryInfo memory() const override;
  Result<std::unique_ptr<Buffer>> allocate(std::int64_t bytes, std::string_view owner) override {
    return allocate_device(info_.ordinal, bytes, owner);
  }
  Result<std::unique_ptr<Buffer>> allocate_pinned(std::int64_t bytes, std::string_view owner) override {
    return allocate_pinned_host(info_.ordinal, bytes, owner);
  }
  Result<std::unique_ptr<Arena>> reserve_arena(std::int64_t bytes) override {
    return MappedArena::reserve(info_.ordinal, bytes);
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(info_.ordinal); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(info_.ordinal); }

 private:
  DeviceInfo info_;
};

MemoryInfo CudaDevice::memory() const {
  make_current(info_.ordinal);
  std::size_t available = 0, total = 0;
  QUIRE_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return {static_cast<std::int64_t>(total), static_cast<std::int64_t>(available)};
}

}  // namespace

int device_count() { return find_devices().count; }

std::string line() {
  const Found found = find_devices();
  std::string text = "cuda: ";
  if (found.count == 0) text += found.why_none;
  for (int i = 0; i < found.count; ++i) {
    const DeviceInfo info = describe(i);
    text += fmt::format("{}{} (sm{}, {} SMs, {:.0f} GiB)", i == 0 ? "" : ", ", info.name, info.arch,
                        info.cores, static_cast<double>(info.memory_bytes) / (1 << 30));
  }
  return text + fmt::format("; built for sm_{}", kTargets);
}

Result<std::unique_ptr<Device>> open(int ordinal) {
  const Found found = find_devices();
  if (found.count == 0) return bad_input(fmt::format("cuda: {}: use --device cpu", found.why_none));
  QUIRE_CHECK(ordinal >= 0 && ordinal < found.count, "ordinal={} devices={}", ordinal, found.count);
  const DeviceInfo info = describe(ordinal);
  if (info.arch < kLeastCudaArch || info.arch > kMostCudaArch)
    return bad_input(
        fmt::format("cuda:{} is {} (sm{}), and what runs on GPUs here is made for sm{} to sm{}: use "
                    "--device cpu",
                    ordinal, info.name, info.arch, kLeastCudaArch, kMostCudaArch));
  if (!build_runs_on(info.arch)) {
    return bad_input(
        fmt::format("cuda:{} is {} (sm{}) and this build has code for sm_{} only: build with "
                    "-DQUIRE_CUDA_ARCHS={}, or use "
                    "--device cpu",
                    ordinal, info.name, info.arch, kTargets, info.arch));
  }
  // Makes the context now, so that what it takes of the memory is not counted as the engine's.
  make_current(ordinal);
  QUIRE_CUDA_CHECK(cudaFree(nullptr));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(info));
}

}  // namespace quire::platform::cuda
