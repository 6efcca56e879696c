#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_256<F16>(Form form, bool fp8) {
  return pick<Config<F16, false, 256, 256, 1, 1, 4, 3, 1>, Config<F16, true, 256, 256, 1, 1, 4, 3, 2>,
              Config<F16, false, 256, 256, 1, 8, 1, 2, 1>, Config<F16, true, 256, 256, 1, 8, 1, 3, 1>>(form,
                                                                                                       fp8);
}

}  // namespace quire::attention::cuda
