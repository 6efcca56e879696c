// cuBLASLt: products of many activation rows. Found at run time (platform/cuda/library.h); its choice of
// kernel is asked for once per shape and kept.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <string>

#include "platform/platform.h"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// y[b] = x[b] w[b]^T (+ bias): x [rows, in], w [out, in], y [rows, out], `batch` of them at the given
// distances. Strides are in elements. x and w are both bf16, both f16, both f32 or both fp8_e4m3; sums are
// float32. e4m3 has one scale per row of x and of w, both on the device (never read by the host): sm_90 and
// cuBLASLt 12.9, which lets them differ by row.
struct BlasProduct {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;      // [out] of y's type, or null
  const float* x_scale = nullptr;  // [rows], fp8_e4m3 only
  const float* w_scale = nullptr;  // [out]
  DType type = DType::bf16;        // of x and w
  DType y_type = DType::bf16;
  bool fast_sums = false;  // fp8_e4m3: sums stay in the tensor cores, which keep some 14 bits of them
  std::int64_t rows = 0, in = 0, out = 0;
  std::int64_t x_stride = 0, w_stride = 0, y_stride = 0;
  std::int64_t batch = 1;
  std::int64_t x_batch_stride = 0, w_batch_stride = 0, y_batch_stride = 0;
};

class Blas {
 public:
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  // Empty when the library is there; else the message that names it.
  const std::string& missing() const { return missing_; }
  // Whether cuBLASLt is there and takes the operands' places and strides.
  bool takes(const BlasProduct& product) const;
  // takes(product), and there is a kernel for it: multiply() will do it.
  bool finds(const BlasProduct& product, std::int64_t workspace_bytes);
  // False, and nothing done, when cuBLASLt has no kernel for it (some types have none with a bias). REQUIRES:
  // takes(product). `workspace`: workspace_bytes that no other call uses meanwhile.
  bool multiply(const BlasProduct& product, void* workspace, std::int64_t workspace_bytes,
                platform::Stream& stream);

 private:
  struct Functions {
    decltype(&::cublasLtCreate) create = nullptr;
    decltype(&::cublasLtDestroy) destroy = nullptr;
    decltype(&::cublasLtGetVersion) version = nullptr;
    decltype(&::cublasLtMatmul) matmul = nullptr;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&::cublasLtMatmulDescInit_internal) desc_init = nullptr;
    decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&::cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
    decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
    decltype(&::cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  };
  // What a choice of kernel depends on; rows as a bucket.
  struct Key {
    std::int64_t rows = 0, in = 0, out = 0, batch = 0;
    std::int32_t types = 0;
    bool operator==(const Key&) const = default;
  };
  struct Choice {
    Key key;
    bool found = false;
    cublasLtMatmulAlgo_t algo;
  };
  struct Operation;

  void set_scales(const BlasProduct& product, Operation& operation) const;
  void prepare(const BlasProduct& product, std::int64_t rows, Operation& operation) const;
  const Choice& choose(const BlasProduct& product, std::int64_t workspace_bytes);

  static constexpr std::size_t kChoices = 1024;
  std::string missing_;
  Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  bool row_scales_ = false;                 // this library knows scales per row
  std::array<Choice, kChoices> choices_{};  // a ring: the oldest goes when it is full
  std::size_t choice_count_ = 0;
};

}  // namespace quire::ops::cuda
