#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/ops.h"

namespace quire::ops {

std::unique_ptr<Ops> make_ops(platform::Device& device) {
  const platform::Kind kind = device.info().kind;
  QUIRE_CHECK(kind == platform::Kind::cpu, "no ops for platform {}", platform::to_string(kind));
  return cpu::make_cpu_ops();
}

}  // namespace quire::ops
