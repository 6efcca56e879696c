// The CUDA platform of a build without CUDA: every symbol exists and says so.
#include "platform/cuda/ceilings.h"
#include "platform/entry.h"

namespace quire::platform::cuda {

std::string line() { return "cuda: not in this build"; }
int device_count() { return 0; }

Result<std::unique_ptr<Device>> open(int) {
  return bad_input("cuda: not in this build: use --device cpu, or a build with CUDA");
}

// No device is there whose ceilings could be asked for.
std::int64_t cache_bytes(Stream&) { return 0; }
void read_all(const void*, std::int64_t, void*, Stream&) {}
void launch_empty(Stream&) {}
Result<std::unique_ptr<Product>> make_product(DType, Device&, Stream&) {
  return bad_input("cuda: not in this build");
}

}  // namespace quire::platform::cuda
