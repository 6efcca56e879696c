// What a CUDA device can do at best, for attention/bench: a streaming read, a large matrix product by
// cuBLASLt, an empty kernel. A build without CUDA has the names and no device that they could be asked of.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "platform/platform.h"

namespace quire::platform::cuda {

std::int64_t cache_bytes(Stream& stream);  // of the device's last-level cache
// Reads [data, data + bytes) once; `bytes` a multiple of 16. `sink`: 4 bytes that are never written.
void read_all(const void* data, std::int64_t bytes, void* sink, Stream& stream);
void launch_empty(Stream& stream);

// A product of square matrices of random numbers: n^3 multiply-adds.
class Product {
 public:
  virtual ~Product() = default;
  virtual void run(Stream& stream) = 0;
  virtual double flops() const = 0;
};
// `type`: bf16 or fp8_e4m3. A missing cuBLASLt is a Result that says where it was sought.
Result<std::unique_ptr<Product>> make_product(DType type, Device& device, Stream& stream);

}  // namespace quire::platform::cuda
