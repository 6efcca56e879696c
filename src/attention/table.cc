// The table: one line per backend, in order of priority; the reference is last. Adding a backend is one line
// here, one folder and one CMake line. Row `x` is what x_backend() of backends/x/ returns.
#include "attention/caps.h"

#define QUIRE_CPU_ROWS(ROW) \
  ROW(cpu)                  \
  ROW(reference)

#define QUIRE_CUDA_ROWS(ROW) \
  ROW(cuda)                  \
  ROW(reference_cuda)

namespace quire::attention {

#define QUIRE_DECLARE_ROW(name) Backend name##_backend();
QUIRE_CPU_ROWS(QUIRE_DECLARE_ROW)
QUIRE_CUDA_ROWS(QUIRE_DECLARE_ROW)

std::span<const Backend> backends(platform::Kind platform) {
#define QUIRE_LIST_ROW(name) name##_backend(),
  static const Backend kCpu[] = {QUIRE_CPU_ROWS(QUIRE_LIST_ROW)};
  static const Backend kCuda[] = {QUIRE_CUDA_ROWS(QUIRE_LIST_ROW)};
  return platform == platform::Kind::cpu ? std::span<const Backend>(kCpu) : std::span<const Backend>(kCuda);
}

}  // namespace quire::attention
