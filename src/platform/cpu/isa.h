// Which instruction sets this processor offers, found once at run time. Nothing in Quire is compiled for
// the build machine; kernels exist once per level and are chosen through isa().
#pragma once

#include <string>
#include <string_view>

namespace quire::platform::cpu {

enum class Isa : int {
  portable = 0,  // x86-64 baseline
  avx2 = 1,      // AVX2 + FMA + F16C + BMI2
  avx512 = 2,    // AVX-512 F, BW, DQ, VL (BF16, VNNI, FP16 are reported, not required)
  amx = 3,       // as avx512, plus AMX tiles with the kernel's permission; no kernel uses it yet
};

// The level in use: the best one of the processor, or less if QUIRE_CPU_ISA (portable|avx2|avx512, a
// debug variable) says so. Asking for more than the processor has ends the process with a message.
Isa isa();
Isa best_isa();
std::string_view to_string(Isa isa);
// "AMD EPYC 9V74, 2 threads, avx2 fma f16c avx512f ... (using avx512)".
std::string describe_cpu();

}  // namespace quire::platform::cpu
