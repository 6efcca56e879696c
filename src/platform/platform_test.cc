#include "platform/platform.h"

#include <gtest/gtest.h>

namespace quire::platform {
namespace {

TEST(OpenDevice, OpensTheCpuWithItsFacts) {
  auto device = open_device("cpu", ThreadPlan{2});
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->info().kind, Kind::cpu);
  EXPECT_GE((*device)->info().cores, 1);
  EXPECT_GT((*device)->info().memory_bytes, 0);
  EXPECT_FALSE((*device)->info().name.empty());
}

TEST(OpenDevice, AnUnknownNameIsAnsweredWithThoseThereAre) {
  for (const char* name :
       {"cpuu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999999", "CPU"}) {
    auto device = open_device(name, ThreadPlan{});
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.error().code, Code::bad_input);
    EXPECT_NE(device.error().message.find("cpu"), std::string::npos) << device.error().message;
  }
}

TEST(PlatformLines, OnePerPlatform) { EXPECT_EQ(platform_lines().size(), 2u); }

}  // namespace
}  // namespace quire::platform
