#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_64<Bf16>(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<Bf16, true, 64, 64, 1, 4, 3>, NarrowConfig<Bf16, true, 64, 64, 2, 4, 3>,
                WideConfig<Bf16, true, 64, 64, 2, 4, 3, 2>>(form);
  return pick<NarrowConfig<Bf16, false, 64, 64, 1, 3, 3>, NarrowConfig<Bf16, false, 64, 64, 2, 3, 3>,
              WideConfig<Bf16, false, 64, 64, 2, 4, 3, 2>>(form);
}

}  // namespace quire::attention::cuda
