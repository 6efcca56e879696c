#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_192<Bf16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<Bf16, true, 192, 128, 1, 4, 2>, NarrowConfig<Bf16, true, 192, 128, 2, 4, 2>,
                WideConfig<Bf16, true, 192, 128, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<Bf16, false, 192, 128, 1, 2, 2>, NarrowConfig<Bf16, false, 192, 128, 2, 2, 2>,
              WideConfig<Bf16, false, 192, 128, 1, 8, 2, 1>>(form);
}

}  // namespace quire::attention::cuda
