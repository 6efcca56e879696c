// How kernels of this folder are launched, and how TensorViews become their arguments.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "platform/cuda/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/weight.h"

namespace quire::ops::cuda {

// One launch; the kernel may be set up while the one before it still runs (device.cuh: begin_kernel). A
// grid without blocks is no launch.
template <class... Params, class... Args>
void launch(platform::Stream& stream, void (*kernel)(Params...), dim3 grid, dim3 block,
            std::size_t shared_bytes, int cluster, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = platform::cuda::native(stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  QUIRE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Dynamic shared memory that a block of sm_90 can have.
inline constexpr std::size_t kMostShared = 227 << 10;

// Lets a kernel have this much dynamic shared memory; once per kernel, before its first launch.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  QUIRE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// f32, bf16 or f16 in memory, rank 2, or 3 with heads; the last axis dense.
inline bool is_rows(const TensorView& view) {
  const bool type = view.dtype == DType::f32 || view.dtype == DType::bf16 || view.dtype == DType::f16;
  return view.data != nullptr && type &&
         ((view.rank == 2 && view.stride[1] == 1) || (view.rank == 3 && view.stride[2] == 1));
}
inline bool is_matrix(const TensorView& view) { return is_rows(view) && view.rank == 2; }
inline bool is_heads(const TensorView& view) { return is_rows(view) && view.rank == 3; }
inline bool same_shape(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && a.shape == b.shape;
}

inline Rows rows_of(const TensorView& view) {
  Rows rows;
  rows.data = static_cast<char*>(view.data);
  rows.type = view.dtype;
  rows.heads = view.rank == 3 ? static_cast<std::int32_t>(view.shape[1]) : 1;
  rows.n = static_cast<std::int32_t>(view.shape[view.rank == 3 ? 2 : 1]);
  rows.row_stride = view.stride[0];
  rows.head_stride = view.rank == 3 ? view.stride[1] : 0;
  rows.vector = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && rows.row_stride % 8 == 0 &&
                rows.head_stride % 8 == 0;
  return rows;
}
inline std::int64_t items_of(const TensorView& view) {
  return view.shape[0] * (view.rank == 3 ? view.shape[1] : 1);
}

// Weights of a CUDA device are of plain formats: blocks are expanded at load.
inline DType dtype_of(WeightFormat format) {
  const std::optional<DType> type = element_type(format);
  QUIRE_CHECK(type, "weights of format {} on a CUDA device", weight_format_info(format).name);
  return *type;
}
// The type that a product by such weights wants of its activations; rounded ones (linear.cu) are apart.
inline DType operand_type(WeightFormat format) {
  return format == WeightFormat::fp8_e4m3 ? DType::bf16 : dtype_of(format);
}
inline TensorView matrix_of(const WeightView& weight) {
  const DType type = dtype_of(weight.format);
  return TensorView::matrix(const_cast<void*>(weight.data), type, weight.rows, weight.cols,
                            weight.row_bytes / static_cast<std::int64_t>(dtype_bytes(type)));
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace quire::ops::cuda
