// Rows of the CUDA table whose kernels are our own: `cuda`, readable kernels for sm_90 to sm_103, and
// `reference`, the contract in double precision there. A build without CUDA has their Caps, so that `quire
// backends --device sm90` describes them, and no make().
#pragma once

#include "attention/caps.h"
#include "attention/merge.h"

namespace quire::attention {

Backend cuda_backend();
Backend reference_cuda_backend();

namespace cuda {

using Make = std::unique_ptr<Attention> (*)(const Problem& problem, platform::Device& device);
// Null in a build without CUDA.
Make make_attention();
Make make_reference();

// attention::merge on a CUDA stream.
void merge_parts(const MergeArgs& args, platform::Stream& stream);

}  // namespace cuda
}  // namespace quire::attention
