#include "attention/backends/cuda/kernels.cuh"

namespace quire::attention::cuda {

template <class T>
Kernel kernels_192(Form form, bool fp8) {
  if (fp8)
    return pick<NarrowConfig<T, true, 192, 128, 1, 4, 2>, NarrowConfig<T, true, 192, 128, 2, 4, 2>,
                WideConfig<T, true, 192, 128, 1, 8, 3, 1>>(form);
  return pick<NarrowConfig<T, false, 192, 128, 1, 2, 2>, NarrowConfig<T, false, 192, 128, 2, 2, 2>,
              WideConfig<T, false, 192, 128, 1, 8, 2, 1>>(form);
}

template Kernel kernels_192<Bf16>(Form, bool);
template Kernel kernels_192<F16>(Form, bool);

}  // namespace quire::attention::cuda
