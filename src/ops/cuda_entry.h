// What ops/cuda gives to make_ops.cc. A build without CUDA links a stub of the same name (no_cuda/), and
// knows what it would be all the same.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>

#include "ops/ops.h"

namespace quire::ops::cuda {

// Products of few and of many rows take kernels of their own, which sum in different orders.
inline constexpr Determinism kDeterminism = Determinism::run_to_run;

inline std::string ops_name(int arch) { return fmt::format("cuda (sm_{})", arch); }

// REQUIRES: a CUDA device.
std::unique_ptr<Ops> make_cuda_ops(platform::Device& device);

}  // namespace quire::ops::cuda
