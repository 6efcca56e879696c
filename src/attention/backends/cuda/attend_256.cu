#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <class T>
Kernel kernels_256(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<T, true, 256, 256, 1, 3, 2>, NarrowConfig<T, true, 256, 256, 2, 3, 2>,
                WideConfig<T, true, 256, 256, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<T, false, 256, 256, 1, 3, 1>, NarrowConfig<T, false, 256, 256, 2, 3, 1>,
              WideConfig<T, false, 256, 256, 1, 8, 2, 1>>(form);
}

template Kernel kernels_256<Bf16>(Form, bool);
template Kernel kernels_256<F16>(Form, bool);

}  // namespace quire::attention::cuda
