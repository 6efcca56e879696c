#include "ops/cuda/blas.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "platform/cuda/library.h"
#include "platform/cuda/stream.h"

#define QUIRE_BLAS_CHECK(call)                                                                  \
  do {                                                                                          \
    const cublasStatus_t blas_status_ = (call);                                                 \
    QUIRE_CHECK(blas_status_ == CUBLAS_STATUS_SUCCESS, #call ": status {}", int(blas_status_)); \
  } while (false)

namespace quire::ops::cuda {
namespace {

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::fp8_e4m3:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_32F;
  }
}

// Rows as the choice sees them: two steps per doubling from 8 on, rounded up.
std::int64_t bucket_of(std::int64_t rows) {
  if (rows <= 8) return 8;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows - 1)));
  const std::int64_t half = power + power / 2;
  return rows <= half ? half : 2 * power;
}

// The first version with CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, a scale per row.
constexpr int kRowScalesVersion = 120900;

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace

// In cuBLASLt's column-major words: d [out, rows] = transposed a [in, out] times b [in, rows].
struct Blas::Operation {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, d;
};

Blas::Blas() {
  // The version whose header this is compiled with: layouts of its structs are part of the contract.
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  const auto opened = platform::cuda::Library::open(name);
  if (!opened.ok()) {
    missing_ = opened.error().message;
    return;
  }
  const platform::cuda::Library& library = *opened;
  bool complete = true;
  const auto find = [&]<class F>(F& function, const char* symbol) {
    function = library.find<F>(symbol);
    complete = complete && function != nullptr;
  };
  find(f_.create, "cublasLtCreate");
  find(f_.destroy, "cublasLtDestroy");
  find(f_.version, "cublasLtGetVersion");
  find(f_.matmul, "cublasLtMatmul");
  find(f_.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f_.desc_init, "cublasLtMatmulDescInit_internal");
  find(f_.desc_set, "cublasLtMatmulDescSetAttribute");
  find(f_.layout_init, "cublasLtMatrixLayoutInit_internal");
  find(f_.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(f_.preference_init, "cublasLtMatmulPreferenceInit_internal");
  find(f_.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  if (!complete) {
    missing_ = library.path() + " lacks functions of cuBLASLt " + std::to_string(CUBLAS_VER_MAJOR);
    return;
  }
  QUIRE_BLAS_CHECK(f_.create(&handle_));
  row_scales_ = CUBLAS_VERSION >= kRowScalesVersion && f_.version() >= kRowScalesVersion;
}

Blas::~Blas() {
  if (handle_ != nullptr) f_.destroy(handle_);
}

bool Blas::takes(const BlasProduct& p) const {
  const auto element = static_cast<std::int64_t>(dtype_bytes(p.type));
  const auto y_element = static_cast<std::int64_t>(dtype_bytes(p.y_type));
  const auto whole = [](std::int64_t elements, std::int64_t bytes) { return elements * bytes % 16 == 0; };
  if (p.type == DType::fp8_e4m3 && !(row_scales_ && p.batch == 1 && p.x_scale && p.w_scale &&
                                     aligned16(p.x_scale) && aligned16(p.w_scale)))
    return false;
  return handle_ != nullptr && aligned16(p.x) && aligned16(p.w) && aligned16(p.y) && aligned16(p.bias) &&
         whole(p.x_stride, element) && whole(p.w_stride, element) && whole(p.in, element) &&
         whole(p.x_batch_stride, element) && whole(p.w_batch_stride, element) &&
         whole(p.y_batch_stride, y_element);
}

// cuBLASLt's A is w.
void Blas::set_scales(const BlasProduct& p, Operation& o) const {
#if CUBLAS_VERSION >= 120900
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    QUIRE_BLAS_CHECK(f_.desc_set(&o.desc, attribute, &value, sizeof(value)));
  };
  constexpr std::int32_t kPerRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kPerRow);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kPerRow);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.w_scale);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scale);
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(p.fast_sums));
#else
  static_cast<void>(p), static_cast<void>(o);
#endif
}

void Blas::prepare(const BlasProduct& p, std::int64_t rows, Operation& o) const {
  QUIRE_BLAS_CHECK(f_.desc_init(&o.desc, sizeof(o.desc), CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    QUIRE_BLAS_CHECK(f_.desc_set(&o.desc, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (p.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(p.y_type)));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  if (p.type == DType::fp8_e4m3) set_scales(p, o);
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& l, DType type, std::int64_t height,
                          std::int64_t width, std::int64_t stride, std::int64_t batch_stride) {
    QUIRE_BLAS_CHECK(f_.layout_init(&l, sizeof(l), type_of(type), static_cast<std::uint64_t>(height),
                                    static_cast<std::uint64_t>(width), stride));
    if (p.batch == 1) return;
    const auto count = static_cast<std::int32_t>(p.batch);
    QUIRE_BLAS_CHECK(f_.layout_set(&l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    QUIRE_BLAS_CHECK(
        f_.layout_set(&l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof(batch_stride)));
  };
  layout(o.a, p.type, p.in, p.out, p.w_stride, p.w_batch_stride);
  layout(o.b, p.type, p.in, rows, p.x_stride, p.x_batch_stride);
  layout(o.d, p.y_type, p.out, rows, p.y_stride, p.y_batch_stride);
}

const Blas::Choice& Blas::choose(const BlasProduct& p, std::int64_t workspace_bytes) {
  const std::int32_t types = static_cast<std::int32_t>(p.type) * 16 + static_cast<std::int32_t>(p.y_type) +
                             (p.bias != nullptr ? 256 : 0) + (p.y_stride % 8 == 0 ? 0 : 512) +
                             (p.fast_sums ? 1024 : 0);
  const Key key{bucket_of(p.rows), p.in, p.out, p.batch, types};
  const std::size_t known = std::min(choice_count_, kChoices);
  for (std::size_t i = 0; i < known; ++i) {
    if (choices_[i].key == key) return choices_[i];
  }
  Operation operation;
  prepare(p, key.rows, operation);
  cublasLtMatmulPreferenceOpaque_t preference;
  QUIRE_BLAS_CHECK(f_.preference_init(&preference, sizeof(preference)));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    QUIRE_BLAS_CHECK(f_.preference_set(&preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
  constexpr std::uint32_t kPlace = 16;  // the choice serves every operand that takes() lets in
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kPlace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kPlace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kPlace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kPlace);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = f_.heuristic(handle_, &operation.desc, &operation.a, &operation.b,
                                             &operation.d, &operation.d, &preference, 1, &result, &found);
  Choice& choice = choices_[choice_count_++ % kChoices];
  choice = {key, status == CUBLAS_STATUS_SUCCESS && found == 1, result.algo};
  return choice;
}

bool Blas::finds(const BlasProduct& p, std::int64_t workspace_bytes) {
  return takes(p) && choose(p, workspace_bytes).found;
}

bool Blas::multiply(const BlasProduct& p, void* workspace, std::int64_t workspace_bytes,
                    platform::Stream& stream) {
  QUIRE_CHECK(takes(p), "{} x {} x {} of {}: {}", p.rows, p.out, p.in, to_string(p.type), missing_);
  const Choice& choice = choose(p, workspace_bytes);
  if (!choice.found) return false;
  Operation operation;
  prepare(p, p.rows, operation);
  constexpr float kOne = 1.0f, kZero = 0.0f;
  QUIRE_BLAS_CHECK(f_.matmul(handle_, &operation.desc, &kOne, p.w, &operation.a, p.x, &operation.b, &kZero,
                             p.y, &operation.d, p.y, &operation.d, &choice.algo, workspace,
                             static_cast<std::size_t>(workspace_bytes), platform::cuda::native(stream)));
  return true;
}

}  // namespace quire::ops::cuda
