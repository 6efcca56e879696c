// main() of the tests that need a device: without one it says why nothing ran and ends with the exit code
// that CTest knows as "skipped".
#include <gtest/gtest.h>

#include <cstdio>

#include "platform/platform.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = quire::platform::open_device("cuda", quire::platform::ThreadPlan{});
  if (!device.ok()) {
    std::printf("skipped: these tests need a device: %s\n", device.error().message.c_str());
    return 77;
  }
  std::printf("device: %s\n", (*device)->info().name.c_str());
  return RUN_ALL_TESTS();
}
