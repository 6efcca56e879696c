// Device memory, page-locked host memory and the arena of a CUDA device. Made by the device; nobody else
// includes this.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "platform/platform.h"

namespace quire::platform::cuda {

// Poisoned with NaN in debug builds, zeroed never. Too little memory is a Result that names the numbers.
Result<std::unique_ptr<Buffer>> allocate_device(int ordinal, std::int64_t bytes, std::string_view owner);
Result<std::unique_ptr<Buffer>> allocate_pinned_host(int ordinal, std::int64_t bytes, std::string_view owner);

// Addresses first, memory later: what is recorded on the addresses stays right when the arena gets its
// backing or grows. Each back() adds one allocation behind the last.
class MappedArena final : public Arena {
 public:
  static Result<std::unique_ptr<Arena>> reserve(int ordinal, std::int64_t bytes);
  ~MappedArena() override;
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  void* base() const override { return reinterpret_cast<void*>(base_); }
  std::int64_t reserved_bytes() const override { return reserved_; }
  std::int64_t backed_bytes() const override { return backed_; }
  Status back(std::int64_t bytes) override;

 private:
  struct Piece {
    CUmemGenericAllocationHandle handle = 0;
    std::int64_t begin = 0;
    std::int64_t bytes = 0;
  };
  MappedArena(int ordinal, CUdeviceptr base, std::int64_t reserved, std::int64_t granule)
      : ordinal_(ordinal), base_(base), reserved_(reserved), granule_(granule) {}

  int ordinal_;
  CUdeviceptr base_;
  std::int64_t reserved_;
  std::int64_t granule_;
  std::int64_t backed_ = 0;  // what was asked for; the pieces are whole granules
  std::int64_t mapped_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace quire::platform::cuda
