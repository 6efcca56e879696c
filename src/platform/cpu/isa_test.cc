#include "platform/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace quire::platform::cpu {
namespace {

TEST(Isa, LevelsNeedAllTheirParts) {
  CpuFeatures f;
  f.sse42 = true;
  EXPECT_EQ(best_isa_of(f), Isa::portable);
  f.avx2 = f.fma = f.f16c = true;
  EXPECT_EQ(best_isa_of(f), Isa::portable);
  f.bmi2 = true;
  EXPECT_EQ(best_isa_of(f), Isa::avx2);
  f.avx512f = f.avx512bw = f.avx512dq = true;
  EXPECT_EQ(best_isa_of(f), Isa::avx2);
  f.avx512vl = true;
  EXPECT_EQ(best_isa_of(f), Isa::avx512);
  f.amx_tile = true;
  EXPECT_EQ(best_isa_of(f), Isa::avx512);
  f.amx_bf16 = true;
  EXPECT_EQ(best_isa_of(f), Isa::amx);
}

TEST(Isa, TheDescriptionNamesTheLevelInUse) {
  EXPECT_NE(describe_cpu().find(to_string(isa())), std::string::npos);
  EXPECT_LE(isa(), best_isa());
  EXPECT_GE(usable_threads(), 1);
}

// isa() reads the variable once per process: the death test's child asks first.
TEST(IsaDeathTest, AWishIsMetOrRefusedWithTheNearestLegalOne) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("QUIRE_CPU_ISA", "portable", 1);
        std::_Exit(isa() == Isa::portable ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  for (const char* wrong : {"avx3", ""}) {
    EXPECT_EXIT(
        {
          setenv("QUIRE_CPU_ISA", wrong, 1);
          isa();
        },
        testing::ExitedWithCode(2), "not one of portable, avx2, avx512");
  }
  if (best_isa() < Isa::amx) {
    EXPECT_EXIT(
        {
          setenv("QUIRE_CPU_ISA", "amx", 1);
          isa();
        },
        testing::ExitedWithCode(2), "or less");
  }
}

}  // namespace
}  // namespace quire::platform::cpu
