// The GPUs that the CUDA kernels are made for: those with 227 KB of shared memory a block and clusters, which
// are sm_90 (the one that they were run on), sm_100 and sm_103. Which of them a build has code for is its
// QUIRE_CUDA_ARCHS.
#pragma once

namespace quire::platform {

inline constexpr int kLeastCudaArch = 90, kMostCudaArch = 103;

}  // namespace quire::platform
