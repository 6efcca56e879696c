#include "attention/backends/cuda/kernels.cuh"
#include "attention/backends/cuda/latent_kernel.cuh"

namespace quire::attention::cuda {

template <class C>
Kernel latent_kernel_of() {
  return kernel_of<C>(kLatentShares, reinterpret_cast<const void*>(&attend_latent<C>));
}

template <class T>
Kernel kernels_latent(Form, bool fp8) {
  return fp8 ? latent_kernel_of<LatentConfig<T, true>>() : latent_kernel_of<LatentConfig<T, false>>();
}

template Kernel kernels_latent<Bf16>(Form, bool);
template Kernel kernels_latent<F16>(Form, bool);

}  // namespace quire::attention::cuda
