#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_128<F16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<F16, true, 128, 128, 1, 2, 5>, NarrowConfig<F16, true, 128, 128, 2, 3, 3>,
                WideConfig<F16, true, 128, 128, 1, 4, 3, 3>>(form);
  return pick<NarrowConfig<F16, false, 128, 128, 1, 2, 3>, NarrowConfig<F16, false, 128, 128, 2, 3, 2>,
              WideConfig<F16, false, 128, 128, 2, 4, 2, 2>>(form);
}

}  // namespace quire::attention::cuda
