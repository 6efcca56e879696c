#include <gtest/gtest.h>

#include "ops/ops.h"

namespace quire::ops {
namespace {

TEST(OpsInfo, IsWhatTheOpsOfAnOpenDeviceSay) {
  auto device = platform::open_device("cpu", {});
  ASSERT_TRUE(device.ok()) << device.error().message;
  const auto made = make_ops(**device);
  const OpsInfo known = ops_info((*device)->info());
  EXPECT_EQ(known.name, made->name());
  EXPECT_EQ(known.determinism, made->determinism());
}

TEST(OpsInfo, OfADeviceThatIsNotHere) {
  const OpsInfo info = ops_info({.kind = platform::Kind::cuda, .arch = 80});
  EXPECT_EQ(info.name, "cuda (sm_80)");
  EXPECT_EQ(info.determinism, Determinism::run_to_run);
}

}  // namespace
}  // namespace quire::ops
