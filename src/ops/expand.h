// Expanding a stored weight to float32 on the host: what loading does for a device that multiplies another
// type.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/weight.h"

namespace quire::ops {

// The formats of expand(): the plain types and ggml's blocks that this build knows.
bool can_expand(WeightFormat format);
std::vector<WeightFormat> expandable_formats();

// y[0, count) = the values of `count` elements at x, a multiple of the format's block. REQUIRES
// can_expand(format). Thread safe.
void expand(WeightFormat format, const void* x, float* y, std::int64_t count);

}  // namespace quire::ops
