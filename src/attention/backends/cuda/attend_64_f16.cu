#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_64<F16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<F16, true, 64, 64, 1, 4, 3>, NarrowConfig<F16, true, 64, 64, 2, 4, 3>,
                WideConfig<F16, true, 64, 64, 2, 4, 3, 2>>(form);
  return pick<NarrowConfig<F16, false, 64, 64, 1, 3, 3>, NarrowConfig<F16, false, 64, 64, 2, 3, 3>,
              WideConfig<F16, false, 64, 64, 2, 4, 3, 2>>(form);
}

}  // namespace quire::attention::cuda
