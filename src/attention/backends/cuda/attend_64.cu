#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <class T>
Kernel kernels_64(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<T, true, 64, 64, 1, 4, 3>, NarrowConfig<T, true, 64, 64, 2, 4, 3>,
                WideConfig<T, true, 64, 64, 2, 4, 3, 2>>(form);
  return pick<NarrowConfig<T, false, 64, 64, 1, 3, 3>, NarrowConfig<T, false, 64, 64, 2, 3, 3>,
              WideConfig<T, false, 64, 64, 2, 4, 3, 2>>(form);
}

template Kernel kernels_64<Bf16>(Form, bool);
template Kernel kernels_64<F16>(Form, bool);

}  // namespace quire::attention::cuda
