// The cpu row: flash attention over a paged or dense cache, for x86-64 with run-time choice of portable,
// AVX2 and AVX-512 kernels. docs/ATTENTION.md, "cpu"; kernel.h says why it is schedule_invariant.
//
// All phases are one algorithm. plan() deals the step's rows and keys to units of fixed size; run() has the
// stream's team work through them. Nothing is allocated after make().
#pragma once

#include <memory>

#include "attention/caps.h"
#include "platform/cpu/isa.h"

namespace quire::attention {

Backend cpu_backend();

namespace cpu {
// The row's instance on the kernels of one instruction set, which the processor must have (tests, bench).
std::unique_ptr<Attention> make_attention(const Problem& problem, platform::cpu::Isa isa);
}  // namespace cpu

}  // namespace quire::attention
