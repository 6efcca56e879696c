#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_256<F16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<F16, true, 256, 256, 1, 3, 2>, NarrowConfig<F16, true, 256, 256, 2, 3, 2>,
                WideConfig<F16, true, 256, 256, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<F16, false, 256, 256, 1, 3, 1>, NarrowConfig<F16, false, 256, 256, 2, 3, 1>,
              WideConfig<F16, false, 256, 256, 1, 8, 2, 1>>(form);
}

}  // namespace quire::attention::cuda
