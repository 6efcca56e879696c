#include "ops/cpu/row_math.h"

#include "tensor/dtype.h"

namespace quire::ops::cpu {

const RowMath& row_math(platform::cpu::Isa isa) {
  using platform::cpu::Isa;
  if (isa == Isa::portable) return sse42::kRowMath;
  return isa == Isa::avx2 ? avx2::kRowMath : avx512::kRowMath;
}

void row_to_f16(const RowMath& math, const float* x, std::uint16_t* y, std::int64_t n) {
  if (math.to_f16) return math.to_f16(x, y, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

}  // namespace quire::ops::cpu
