#include "ops/cpu/cpu_ops.h"
#include "ops/cuda_entry.h"
#include "ops/ops.h"

namespace quire::ops {

std::unique_ptr<Ops> make_ops(platform::Device& device) {
  if (device.info().kind == platform::Kind::cuda) return cuda::make_cuda_ops(device);
  return cpu::make_cpu_ops();
}

OpsInfo ops_info(const platform::DeviceInfo& device) {
  if (device.kind == platform::Kind::cuda) return {cuda::ops_name(device.arch), cuda::kDeterminism};
  return {cpu::ops_name(platform::cpu::isa()), cpu::kDeterminism};
}

}  // namespace quire::ops
