// Which instruction sets this processor offers, found once at run time. Nothing in Quire is compiled for
// the build machine; kernels exist once per level and are chosen through isa().
#pragma once

#include <string>
#include <string_view>

namespace quire::platform::cpu {

enum class Isa : int {
  portable = 0,  // x86-64 with SSE4.2: the minimum
  avx2 = 1,      // AVX2 + FMA + F16C + BMI2
  avx512 = 2,    // AVX-512 F, BW, DQ, VL (BF16, VNNI, FP16 are reported, not required)
  amx = 3,       // as avx512, plus AMX tiles with the kernel's permission; no kernel uses it yet
};

// What the processor and the operating system offer together, whatever QUIRE_CPU_ISA says.
struct CpuFeatures {
  bool sse42 = false;
  bool avx2 = false, fma = false, f16c = false, bmi2 = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512_vnni = false, avx512_bf16 = false, avx512_fp16 = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
};
const CpuFeatures& cpu_features();
Isa best_isa_of(const CpuFeatures& features);

// The level in use: the best one of the processor, or less if QUIRE_CPU_ISA (portable|avx2|avx512|amx, a
// debug variable) says so. Asking for more than the processor has, and a processor below the minimum,
// end the process with a message (exit codes 2 and 3).
Isa isa();
Isa best_isa();
std::string_view to_string(Isa isa);
// "AMD EPYC 9V74, 2 threads, avx2 fma f16c avx512f ... (using avx512)".
std::string describe_cpu();
// The processor's own name, "AMD EPYC 9V74 80-Core Processor".
std::string cpu_brand();
// Hardware threads that this process may use: its affinity mask, and its control group's CPU quota.
int usable_threads();

}  // namespace quire::platform::cpu
