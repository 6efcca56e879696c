// What a build without CUDA says of it.
#include <gtest/gtest.h>

#include "platform/platform.h"

namespace quire::platform {
namespace {

TEST(OpenDevice, AnAbsentPlatformSaysSo) {
  EXPECT_EQ(platform_lines().back(), "cuda: not in this build");
  for (const char* name : {"cuda", "cuda:0", "cuda:3", "cuda:-1", "cuda:x", "cuda:99999999999999"}) {
    auto device = open_device(name, ThreadPlan{});
    ASSERT_FALSE(device.ok());
    EXPECT_NE(device.error().message.find("not in this build"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire::platform
