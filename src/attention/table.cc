// The table: one line per backend, in order of priority. Adding a backend is one line here, one folder
// and one CMake line.
#include "attention/backends/cpu/backend.h"
#include "attention/backends/reference/backend.h"
#include "attention/caps.h"

namespace quire::attention {

std::span<const Backend> backends(platform::Kind platform) {
  static const Backend kCpu[] = {
      cpu_backend(),
      reference_backend(),
  };
  // CUDA rows come with a build that has the platform; none of the CPU's rows can run there.
  return platform == platform::Kind::cpu ? std::span<const Backend>(kCpu) : std::span<const Backend>();
}

}  // namespace quire::attention
