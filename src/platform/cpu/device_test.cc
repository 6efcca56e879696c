#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "platform/cpu/memory.h"
#include "platform/entry.h"

namespace quire::platform::cpu {
namespace {

std::unique_ptr<Device> make_device() { return std::move(open(ThreadPlan{1}).value()); }

TEST(Allocate, GivesAlignedWritableMemoryOfAnySize) {
  const auto device = make_device();
  for (std::int64_t bytes : {0, 1, 100, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 3}) {
    auto buffer = device->allocate(bytes, "test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*buffer)->data()) % 64, 0u);
    std::memset((*buffer)->data(), 1, static_cast<std::size_t>(bytes));
  }
}

TEST(Allocate, TooMuchIsAResultWithTheNumbers) {
  const auto device = make_device();
  auto buffer = device->allocate(std::int64_t{1} << 50, "weights");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, Code::no_resources);
  EXPECT_NE(buffer.error().message.find("weights needs 1125899906842624 bytes"), std::string::npos);
}

TEST(Arena, ReservesFirstAndIsBackedInSteps) {
  const auto device = make_device();
  auto made = device->reserve_arena(std::int64_t{1} << 36);
  ASSERT_TRUE(made.ok());
  Arena& arena = **made;
  EXPECT_GE(arena.reserved_bytes(), std::int64_t{1} << 36);
  EXPECT_EQ(arena.backed_bytes(), 0);
  ASSERT_TRUE(arena.back(1000).ok());
  std::memset(arena.base(), 7, 1000);
  ASSERT_TRUE(arena.back((8 << 20) + 5).ok());
  EXPECT_EQ(arena.backed_bytes(), (8 << 20) + 5);
  EXPECT_EQ(static_cast<char*>(arena.base())[999], 7) << "growing keeps what is there";
  std::memset(arena.base(), 1, static_cast<std::size_t>(arena.backed_bytes()));
}

// A machine made of files: /proc/meminfo and control groups under a folder of the test's own.
class Machine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "quire_machine_" + std::to_string(::getpid());
    std::filesystem::remove_all(root_);
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(Machine, WithoutGroupsIsThePhysicalMemory) {
  EXPECT_EQ(read_memory(root_).total_bytes, 1000 * 1024);
  EXPECT_EQ(read_memory(root_).available_bytes, 800 * 1024);
}

TEST_F(Machine, AVersion2LimitAboveTheOwnGroupCounts) {
  put("/proc/self/cgroup", "0::/outer/inner\n");
  put("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  put("/sys/fs/cgroup/outer/memory.max", "500000\n");
  put("/sys/fs/cgroup/outer/memory.current", "300000\n");
  put("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(read_memory(root_).total_bytes, 500000);
  EXPECT_EQ(read_memory(root_).available_bytes, 300000);
}

TEST_F(Machine, AVersion1LimitCounts) {
  put("/proc/self/cgroup", "5:cpu:/a\n3:memory:/box\n");
  put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "400000\n");
  put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "390000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_memory(root_).total_bytes, 400000);
  EXPECT_EQ(read_memory(root_).available_bytes, 10000);
}

TEST_F(Machine, AGroupPathOutsideTheMountFallsBackToItsRoot) {
  put("/proc/self/cgroup", "0::/not/mounted/here\n");
  put("/sys/fs/cgroup/memory.max", "600000\n");
  put("/sys/fs/cgroup/memory.current", "700000\n");
  EXPECT_EQ(read_memory(root_).total_bytes, 600000);
  EXPECT_EQ(read_memory(root_).available_bytes, 0);
}

TEST_F(Machine, ACpuQuotaIsTheLeastOfAllLevelsRoundedUp) {
  EXPECT_EQ(read_cpu_quota(root_), 0);
  put("/proc/self/cgroup", "0::/outer/inner\n");
  put("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 0);
  put("/sys/fs/cgroup/outer/cpu.max", "250000 100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 3);
  put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 2);
}

TEST_F(Machine, AVersion1CpuQuotaCounts) {
  put("/proc/self/cgroup", "4:cpu,cpuacct:/box\n");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 0);
  put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n");
  put("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cpu_quota(root_), 1);
}

}  // namespace
}  // namespace quire::platform::cpu
