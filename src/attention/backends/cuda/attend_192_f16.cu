#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_192<F16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<F16, true, 192, 128, 1, 4, 2>, NarrowConfig<F16, true, 192, 128, 2, 4, 2>,
                WideConfig<F16, true, 192, 128, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<F16, false, 192, 128, 1, 2, 2>, NarrowConfig<F16, false, 192, 128, 2, 2, 2>,
              WideConfig<F16, false, 192, 128, 1, 8, 2, 1>>(form);
}

}  // namespace quire::attention::cuda
