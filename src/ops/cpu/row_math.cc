#include "ops/cpu/row_math.h"

namespace quire::ops::cpu {

const RowMath& row_math(platform::cpu::Isa isa) {
  using platform::cpu::Isa;
  if (isa == Isa::portable) return sse42::kRowMath;
  return isa == Isa::avx2 ? avx2::kRowMath : avx512::kRowMath;
}

}  // namespace quire::ops::cpu
