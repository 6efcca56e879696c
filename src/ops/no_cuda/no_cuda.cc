// A build without CUDA: no device of that kind can be opened, so nobody can ask for its ops.
#include "base/check.h"
#include "ops/cuda_entry.h"

namespace quire::ops::cuda {

std::unique_ptr<Ops> make_cuda_ops(platform::Device& device) {
  QUIRE_CHECK(false, "ops for {} in a build without CUDA", device.info().name);
  return nullptr;
}

}  // namespace quire::ops::cuda
