#include "ops/cuda/cuda_ops.h"

#include <fmt/core.h>

#include "base/check.h"
#include "platform/cuda/stream.h"

namespace quire::ops::cuda {

CudaOps::CudaOps(platform::Device& device)
    : arch_(device.info().arch), multiprocessors_(device.info().cores) {
  name_ = ops_name(arch_);
  if (!blas_.missing().empty()) name_ += ", without cuBLASLt: " + blas_.missing();
}

std::int64_t CudaOps::workspace_bytes(const OpsLimits& limits) const {
  return kBlasBytes + kCounterBytes + std::max(linear_workspace_bytes(limits), moe_workspace_bytes(limits));
}

void CudaOps::set_workspace(void* data, std::int64_t bytes, const OpsLimits& limits) {
  QUIRE_CHECK(bytes >= workspace_bytes(limits) && reinterpret_cast<std::uintptr_t>(data) % 256 == 0,
              "workspace of {} bytes at {}, {} needed", bytes, data, workspace_bytes(limits));
  workspace_ = Workspace(data, bytes, limits);
  QUIRE_CUDA_CHECK(cudaMemset(workspace_.counters(), 0, kCounterBytes));
  QUIRE_CUDA_CHECK(cudaDeviceSynchronize());  // streams do not wait for the default one
}

std::unique_ptr<Ops> make_cuda_ops(platform::Device& device) { return std::make_unique<CudaOps>(device); }

}  // namespace quire::ops::cuda
