// What ops/cuda gives to make_ops.cc. A build without CUDA links a stub of the same name (no_cuda/).
#pragma once

#include <memory>

#include "ops/ops.h"

namespace quire::ops::cuda {

// REQUIRES: a CUDA device.
std::unique_ptr<Ops> make_cuda_ops(platform::Device& device);

}  // namespace quire::ops::cuda
