// A build without CUDA: the rows are described, none can be made, and no device asks for its ceilings.
#include "attention/backends/cuda/backend.h"
#include "attention/backends/cuda/ceilings.h"
#include "base/check.h"

namespace quire::attention::cuda {

Make make_attention() { return nullptr; }
Make make_reference() { return nullptr; }
void merge_parts(const MergeArgs& args, platform::Stream&) {
  QUIRE_CHECK(false, "{} parts on a stream of a platform that is not in this build", args.part_count);
}

std::int64_t cache_bytes(platform::Stream&) { return 0; }
void read_all(const void*, std::int64_t, void*, platform::Stream&) {}
void launch_empty(platform::Stream&) {}
Result<std::unique_ptr<Product>> make_product(DType, platform::Device&, platform::Stream&) {
  return bad_input("cuda: not in this build");
}

}  // namespace quire::attention::cuda
