#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <class T>
Kernel kernels_128(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<T, true, 128, 128, 1, 2, 5>, NarrowConfig<T, true, 128, 128, 2, 3, 3>,
                WideConfig<T, true, 128, 128, 1, 4, 3, 3>>(form);
  return pick<NarrowConfig<T, false, 128, 128, 1, 2, 3>, NarrowConfig<T, false, 128, 128, 2, 3, 2>,
              WideConfig<T, false, 128, 128, 2, 4, 2, 2>>(form);
}

template Kernel kernels_128<Bf16>(Form, bool);
template Kernel kernels_128<F16>(Form, bool);

}  // namespace quire::attention::cuda
