#include "platform/cpu/isa.h"

#include <cpuid.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "platform/cpu/memory.h"

namespace quire::platform::cpu {
namespace {

struct Registers {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool bit(std::uint32_t word, int index) { return (word >> index) & 1u; }

// The register states that the operating system saves (XCR0).
std::uint64_t saved_states() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// Linux hands out AMX tile data per process and on request only.
bool permit_amx() {
  constexpr long kReqXcompPerm = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  const Registers one = cpuid(1, 0);
  f.sse42 = bit(one.c, 20);
  if (!bit(one.c, 27)) return f;  // no OSXSAVE: nothing wider than SSE may be used
  const std::uint64_t states = saved_states();
  const bool ymm = (states & 0x6) == 0x6;
  const bool zmm = (states & 0xe6) == 0xe6;
  const bool tiles = (states & 0x60000) == 0x60000;
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = seven.a >= 1 ? cpuid(7, 1) : Registers{};
  f.fma = ymm && bit(one.c, 12);
  f.f16c = ymm && bit(one.c, 29);
  f.avx2 = ymm && bit(seven.b, 5);
  f.bmi2 = bit(seven.b, 8);
  f.avx512f = zmm && bit(seven.b, 16);
  f.avx512dq = zmm && bit(seven.b, 17);
  f.avx512bw = zmm && bit(seven.b, 30);
  f.avx512vl = zmm && bit(seven.b, 31);
  f.avx512_vnni = zmm && bit(seven.c, 11);
  f.avx512_fp16 = zmm && bit(seven.d, 23);
  f.avx512_bf16 = zmm && bit(seven_one.a, 5);
  f.amx_tile = tiles && bit(seven.d, 24) && permit_amx();
  f.amx_bf16 = f.amx_tile && bit(seven.d, 22);
  f.amx_int8 = f.amx_tile && bit(seven.d, 25);
  return f;
}

[[noreturn]] void refuse(int exit_code, const std::string& message) {
  std::fprintf(stderr, "quire: %s\n", message.c_str());
  std::fflush(stderr);
  std::_Exit(exit_code);
}

Isa choose() {
  if (!cpu_features().sse42) {
    refuse(3, fmt::format("this processor ({}) has no SSE4.2, the least that Quire runs on", cpu_brand()));
  }
  const Isa best = best_isa();
  const char* wish = std::getenv("QUIRE_CPU_ISA");
  if (wish == nullptr) return best;
  for (Isa level : {Isa::portable, Isa::avx2, Isa::avx512, Isa::amx}) {
    if (to_string(level) != wish) continue;
    if (level <= best) return level;
    refuse(2, fmt::format("QUIRE_CPU_ISA={} is over what this processor has: use {} or less", wish,
                          to_string(best)));
  }
  refuse(2, fmt::format("QUIRE_CPU_ISA={} is not one of portable, avx2, avx512, amx", wish));
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

Isa best_isa_of(const CpuFeatures& f) {
  if (!(f.avx2 && f.fma && f.f16c && f.bmi2)) return Isa::portable;
  if (!(f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl)) return Isa::avx2;
  return f.amx_tile && f.amx_bf16 ? Isa::amx : Isa::avx512;
}

Isa best_isa() { return best_isa_of(cpu_features()); }

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

std::string_view to_string(Isa isa) {
  constexpr std::array<std::string_view, 4> kNames{"portable", "avx2", "avx512", "amx"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::string cpu_brand() {
  if (cpuid(0x80000000u, 0).a < 0x80000004u) return "x86-64";
  std::array<char, 49> text{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i, 0);
    std::memcpy(text.data() + 16 * i, &r, 16);
  }
  std::string name(text.data());
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name.substr(std::min(name.find_first_not_of(' '), name.size()));
}

int usable_threads() {
  int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) count = CPU_COUNT(&set);
  // Threads beyond the quota would stop together whenever it is used up, in the middle of a step.
  const int quota = read_cpu_quota("");
  return quota > 0 ? std::min(count, quota) : count;
}

std::string describe_cpu() {
  const CpuFeatures& f = cpu_features();
  std::string text = fmt::format("{}, {} threads,", cpu_brand(), usable_threads());
  const std::pair<bool, const char*> names[] = {
      {f.sse42, "sse4.2"},
      {f.avx2, "avx2"},
      {f.fma, "fma"},
      {f.f16c, "f16c"},
      {f.avx512f, "avx512f"},
      {f.avx512bw, "avx512bw"},
      {f.avx512dq, "avx512dq"},
      {f.avx512vl, "avx512vl"},
      {f.avx512_vnni, "avx512_vnni"},
      {f.avx512_bf16, "avx512_bf16"},
      {f.avx512_fp16, "avx512_fp16"},
      {f.amx_tile, "amx_tile"},
      {f.amx_bf16, "amx_bf16"},
      {f.amx_int8, "amx_int8"},
  };
  for (const auto& [present, name] : names) {
    if (present) text += fmt::format(" {}", name);
  }
  return text + fmt::format(" (using {})", to_string(isa()));
}

}  // namespace quire::platform::cpu
