#include "attention/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/backends/cuda/backend.h"
#include "base/check.h"
#include "platform/cpu/stream.h"

namespace quire::attention {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One row and head. Weights are relative to the largest lse, so nothing overflows; the outputs are read
// element by element before the element is written, so `out` may be part 0's.
void merge_one(const MergeArgs& args, std::int64_t row, std::int64_t head) {
  const std::int64_t index = row * args.heads + head;
  float largest = kMinusInfinity;
  for (int p = 0; p < args.part_count; ++p) {
    const float lse = args.parts[p].lse[index];
    if (lse > largest || std::isnan(lse)) largest = lse;  // a NaN stays, and makes every weight one
  }
  float* out = args.out + row * args.out_row_stride + head * args.dim;
  if (largest == kMinusInfinity) {
    std::fill(out, out + args.dim, 0.0f);
    if (args.lse != nullptr) args.lse[index] = kMinusInfinity;
    return;
  }
  float weights[kMaxMergeParts];
  float total = 0;
  for (int p = 0; p < args.part_count; ++p) {
    weights[p] = std::exp(args.parts[p].lse[index] - largest);
    total += weights[p];
  }
  const float sink = args.sink != nullptr ? std::exp(args.sink[head] - largest) : 0.0f;
  for (int p = 0; p < args.part_count; ++p) weights[p] /= total + sink;
  for (std::int32_t d = 0; d < args.dim; ++d) {
    float sum = 0;
    for (int p = 0; p < args.part_count; ++p)
      if (weights[p] != 0) sum += weights[p] * args.parts[p].out[index * args.dim + d];
    out[d] = sum;
  }
  if (args.lse != nullptr) args.lse[index] = largest + std::log(total);
}

}  // namespace

void merge(const MergeArgs& args, platform::Stream& stream) {
  QUIRE_CHECK(args.part_count >= 1 && args.part_count <= kMaxMergeParts, "part_count={}", args.part_count);
  auto* cpu = dynamic_cast<platform::cpu::CpuStream*>(&stream);
  if (cpu == nullptr) return cuda::merge_parts(args, stream);
  cpu->enqueue([args](platform::cpu::Team& team) {
    team.for_each(args.rows, [&](std::int64_t row, int) {
      for (std::int32_t head = 0; head < args.heads; ++head) merge_one(args, row, head);
    });
  });
}

}  // namespace quire::attention
