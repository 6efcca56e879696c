#include "platform/cuda/memory.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "platform/cuda/driver.h"
#include "platform/cuda/stream.h"
#include "platform/cuda/stream_impl.h"

namespace quire::platform::cuda {
namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

#if !defined(__OPTIMIZE__)
// A NaN in every float32, bf16, f16 and fp8 that somebody reads before writing it.
void poison(void* data, std::int64_t bytes) {
  QUIRE_CUDA_CHECK(cudaMemset(data, 0xff, static_cast<std::size_t>(bytes)));
  QUIRE_CUDA_CHECK(cudaDeviceSynchronize());
}
#else
void poison(void*, std::int64_t) {}
#endif

Error out_of_memory(std::string_view owner, std::int64_t bytes) {
  std::size_t available = 0, total = 0;
  QUIRE_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return no_resources(
      fmt::format("{} needs {} bytes and the device has {} available of {}", owner, bytes, available, total));
}

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(int ordinal, void* data, std::int64_t bytes) : ordinal_(ordinal), data_(data), bytes_(bytes) {}
  ~DeviceBuffer() override {
    make_current(ordinal_);
    QUIRE_CUDA_CHECK(cudaFree(data_));
  }
  void* data() const override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  int ordinal_;
  void* data_;
  std::int64_t bytes_;
};

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(void* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  ~PinnedBuffer() override { QUIRE_CUDA_CHECK(cudaFreeHost(data_)); }
  void* data() const override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  void* data_;
  std::int64_t bytes_;
};

CUmemAllocationProp properties_of(int ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

}  // namespace

Result<std::unique_ptr<Buffer>> allocate_device(int ordinal, std::int64_t bytes, std::string_view owner) {
  QUIRE_CHECK(bytes >= 0, "owner={} bytes={}", owner, bytes);
  make_current(ordinal);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // a refusal is an answer, not a state
    return out_of_memory(owner, bytes);
  }
  QUIRE_CUDA_CHECK(error);
  poison(data, bytes);
  return std::unique_ptr<Buffer>(std::make_unique<DeviceBuffer>(ordinal, data, bytes));
}

Result<std::unique_ptr<Buffer>> allocate_pinned_host(int ordinal, std::int64_t bytes,
                                                     std::string_view owner) {
  QUIRE_CHECK(bytes >= 0, "owner={} bytes={}", owner, bytes);
  make_current(ordinal);
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return no_resources(
        fmt::format("{} needs {} bytes of page-locked memory, which the system refuses", owner, bytes));
  }
  QUIRE_CUDA_CHECK(error);
  poison(data, bytes);
  return std::unique_ptr<Buffer>(std::make_unique<PinnedBuffer>(data, bytes));
}

Result<std::unique_ptr<Arena>> MappedArena::reserve(int ordinal, std::int64_t bytes) {
  QUIRE_CHECK(bytes > 0, "bytes={}", bytes);
  make_current(ordinal);
  const CUmemAllocationProp properties = properties_of(ordinal);
  std::size_t granule = 0;
  QUIRE_CUDA_DRIVER_CHECK(driver().granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  const std::int64_t reserved = round_up(bytes, static_cast<std::int64_t>(granule));
  CUdeviceptr base = 0;
  const CUresult result = driver().address_reserve(&base, static_cast<std::size_t>(reserved), granule, 0, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return no_resources(fmt::format(
        "{} bytes of addresses for the KV arena: the driver has none left: use a smaller --kv-memory",
        reserved));
  }
  QUIRE_CUDA_DRIVER_CHECK(result);
  return std::unique_ptr<Arena>(new MappedArena(ordinal, base, reserved, static_cast<std::int64_t>(granule)));
}

MappedArena::~MappedArena() {
  make_current(ordinal_);
  for (const Piece& piece : pieces_) {
    const auto bytes = static_cast<std::size_t>(piece.bytes);
    QUIRE_CUDA_DRIVER_CHECK(driver().unmap(base_ + static_cast<CUdeviceptr>(piece.begin), bytes));
    QUIRE_CUDA_DRIVER_CHECK(driver().release(piece.handle));
  }
  QUIRE_CUDA_DRIVER_CHECK(driver().address_free(base_, static_cast<std::size_t>(reserved_)));
}

Status MappedArena::back(std::int64_t bytes) {
  QUIRE_CHECK(bytes >= backed_ && bytes <= reserved_, "bytes={} backed={} reserved={}", bytes, backed_,
              reserved_);
  make_current(ordinal_);
  Piece piece;
  piece.begin = mapped_;
  piece.bytes = round_up(bytes, granule_) - mapped_;
  if (piece.bytes > 0) {
    const CUmemAllocationProp properties = properties_of(ordinal_);
    const auto size = static_cast<std::size_t>(piece.bytes);
    const CUresult made = driver().create(&piece.handle, size, &properties, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory("the KV arena", piece.bytes);
    QUIRE_CUDA_DRIVER_CHECK(made);
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(piece.begin);
    QUIRE_CUDA_DRIVER_CHECK(driver().map(at, size, 0, piece.handle, 0));
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    QUIRE_CUDA_DRIVER_CHECK(driver().set_access(at, size, &access, 1));
    pieces_.push_back(piece);
    mapped_ += piece.bytes;
    poison(reinterpret_cast<void*>(at), piece.bytes);
  }
  backed_ = bytes;
  return {};
}

}  // namespace quire::platform::cuda
