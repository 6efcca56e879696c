#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_256<Bf16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<Bf16, true, 256, 256, 1, 3, 2>, NarrowConfig<Bf16, true, 256, 256, 2, 3, 2>,
                WideConfig<Bf16, true, 256, 256, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<Bf16, false, 256, 256, 1, 3, 1>, NarrowConfig<Bf16, false, 256, 256, 2, 3, 1>,
              WideConfig<Bf16, false, 256, 256, 1, 8, 2, 1>>(form);
}

}  // namespace quire::attention::cuda
