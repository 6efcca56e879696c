#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_64<F16>(Form form, bool fp8) {
  return pick<Config<F16, false, 64, 64, 1, 1, 4, 3, 3>, Config<F16, true, 64, 64, 1, 1, 4, 4, 3>,
              Config<F16, false, 64, 64, 2, 4, 1, 3, 2>, Config<F16, true, 64, 64, 2, 4, 1, 3, 2>>(form, fp8);
}

}  // namespace quire::attention::cuda
