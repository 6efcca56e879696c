#include "attention/backends/cuda/kernels.cuh"
#include "base/check.h"

namespace quire::attention::cuda {

template <>
Kernel kernels_64<Bf16>(Form, bool);
template <>
Kernel kernels_64<F16>(Form, bool);
template <>
Kernel kernels_128<Bf16>(Form, bool);
template <>
Kernel kernels_128<F16>(Form, bool);
template <>
Kernel kernels_192<Bf16>(Form, bool);
template <>
Kernel kernels_192<F16>(Form, bool);
template <>
Kernel kernels_256<Bf16>(Form, bool);
template <>
Kernel kernels_256<F16>(Form, bool);
template <>
Kernel kernels_latent<Bf16>(Form, bool);
template <>
Kernel kernels_latent<F16>(Form, bool);

namespace {

template <class T>
Kernel find(Form form, bool fp8, std::int32_t qk_dim, std::int32_t v_dim) {
  if (qk_dim <= 64 && v_dim <= 64) return kernels_64<T>(form, fp8);
  if (qk_dim <= 128 && v_dim <= 128) return kernels_128<T>(form, fp8);
  if (qk_dim <= 192 && v_dim <= 128) return kernels_192<T>(form, fp8);
  if (qk_dim == 576 && v_dim == 512) return kernels_latent<T>(form, fp8);
  QUIRE_CHECK(qk_dim <= 256 && v_dim <= 256, "head dims {}/{} are compiled for none", qk_dim, v_dim);
  return kernels_256<T>(form, fp8);
}

}  // namespace

Kernel find_kernel(Form form, Element element, bool fp8, std::int32_t qk_dim, std::int32_t v_dim) {
  return element == Element::bf16 ? find<Bf16>(form, fp8, qk_dim, v_dim)
                                  : find<F16>(form, fp8, qk_dim, v_dim);
}

}  // namespace quire::attention::cuda
