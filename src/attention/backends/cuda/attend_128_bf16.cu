#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <>
Kernel kernels_128<Bf16>(Form form, bool fp8) {
  return pick<Config<Bf16, false, 128, 128, 1, 1, 4, 3, 2>, Config<Bf16, true, 128, 128, 1, 1, 4, 3, 3>,
              Config<Bf16, false, 128, 128, 1, 8, 1, 2, 2>, Config<Bf16, true, 128, 128, 1, 8, 1, 3, 2>>(form,
                                                                                                         fp8);
}

}  // namespace quire::attention::cuda
