// A build without CUDA: the rows are described and none can be made.
#include "attention/backends/cuda/backend.h"
#include "base/check.h"

namespace quire::attention::cuda {

Make make_attention() { return nullptr; }
Make make_reference() { return nullptr; }
void merge_parts(const MergeArgs& args, platform::Stream&) {
  QUIRE_CHECK(false, "{} parts on a stream of a platform that is not in this build", args.part_count);
}

}  // namespace quire::attention::cuda
