// The CUDA platform of a build without CUDA: every symbol exists and says so.
#include "platform/entry.h"

namespace quire::platform::cuda {

std::string line() { return "cuda: not in this build"; }
int device_count() { return 0; }

Result<std::unique_ptr<Device>> open(int) {
  return bad_input("cuda: not in this build: use --device cpu, or a build with CUDA");
}

}  // namespace quire::platform::cuda
