#include "simulate/device.h"

#include <gtest/gtest.h>

#include "simulate/trace.h"

namespace quire::simulate {
namespace {

constexpr std::int32_t kPage = 4;

class Device : public ::testing::Test {
 protected:
  Device()
      : table_({2, 64, {{kv::Keep::all, 0, kPage}}}),
        pool_(make_pool()),
        device_(*pool_, table_),
        mine_(stamps_of(1)),
        other_(stamps_of(2)) {}

  static std::unique_ptr<kv::PagePool> make_pool() {
    kv::PoolConfig config;
    const std::int64_t stride = kPage;
    config.plan = kv::plan_slabs(std::span(&stride, 1), 64).value();
    config.slabs = std::max<std::int64_t>(config.plan.least_slabs(), 64 / config.plan.slab_bytes);
    config.groups = {{"full", {kv::Keep::all, 0, kPage}}};
    return kv::PagePool::create(std::move(config)).value();
  }
  static std::vector<std::uint64_t> stamps_of(std::uint64_t content) {
    std::vector<std::uint64_t> stamps;
    for (std::uint64_t i = 0; i < 16; ++i) stamps.push_back(mix(content, i));
    return stamps;
  }
  static scheduler::PlanRow row(std::uint32_t slot, std::int32_t begin, std::int32_t count, bool opens) {
    scheduler::PlanRow row;
    row.sequence = SequenceId{slot};
    row.slot = SlotId{slot};
    row.opens_slot = opens;
    row.query_begin = begin;
    row.query_count = count;
    row.visible = kv::Visible{begin + count};
    return row;
  }
  // A step with these table changes and copies, then one row; its violations.
  std::vector<std::string> step(std::vector<kv::TableUpdate> updates, std::vector<scheduler::PageCopy> copies,
                                const scheduler::PlanRow& row, Stamps stamps) {
    scheduler::StepPlan plan;
    plan.updates = std::move(updates);
    plan.copies = std::move(copies);
    device_.begin_step(plan);
    std::vector<std::string> violations;
    device_.run_row(row, stamps, false, violations);
    return violations;
  }
  static kv::TableUpdate entry(std::uint32_t slot, std::uint32_t entry, std::uint32_t page) {
    return {GroupId{0}, SlotId{slot}, entry, PageId{page}};
  }

  kv::BlockTable table_;
  std::unique_ptr<kv::PagePool> pool_;
  StampedDevice device_;
  std::vector<std::uint64_t> mine_;
  std::vector<std::uint64_t> other_;
};

TEST_F(Device, ASequenceReadsWhatItWrote) {
  EXPECT_TRUE(step({entry(1, 0, 3), entry(1, 1, 5)}, {}, row(1, 0, 6, true), mine_).empty());
  EXPECT_TRUE(step({}, {}, row(1, 6, 1, false), mine_).empty());
}

TEST_F(Device, PageZeroAnothersPageAndAnUnwrittenOneAreFound) {
  const auto zero = step({entry(1, 0, 3)}, {}, row(1, 0, 6, true), mine_);
  ASSERT_FALSE(zero.empty());
  EXPECT_NE(zero[0].find("page 0"), std::string::npos);
  step({entry(2, 0, 5)}, {}, row(2, 0, 4, true), other_);
  const auto wrong = step({entry(1, 0, 5), entry(1, 1, 6)}, {}, row(1, 4, 1, true), mine_);
  ASSERT_FALSE(wrong.empty());
  EXPECT_NE(wrong[0].find("another sequence's key"), std::string::npos);
  const auto nothing = step({entry(1, 0, 7)}, {}, row(1, 2, 1, true), mine_);
  ASSERT_FALSE(nothing.empty());
  EXPECT_NE(nothing[0].find("nothing"), std::string::npos);
}

TEST_F(Device, ASharedPageAndACopyOfItsFirstTokensAreGood) {
  EXPECT_TRUE(step({entry(1, 0, 3), entry(1, 1, 4)}, {}, row(1, 0, 8, true), mine_).empty());
  // The same first six tokens: page 3 by reference, two tokens of page 4 copied to page 6.
  std::vector<std::uint64_t> fork = other_;
  std::copy_n(mine_.begin(), 6, fork.begin());
  EXPECT_TRUE(step({entry(2, 0, 3), entry(2, 1, 6)}, {{GroupId{0}, PageId{4}, PageId{6}, 2}},
                   row(2, 6, 2, true), fork)
                  .empty());
  // The original still has its own.
  EXPECT_TRUE(step({}, {}, row(1, 8 - 1, 1, true), mine_).empty());
  // One token fewer copied is found.
  EXPECT_FALSE(
      step({entry(2, 1, 7)}, {{GroupId{0}, PageId{4}, PageId{7}, 1}}, row(2, 6, 2, true), fork).empty());
}

}  // namespace
}  // namespace quire::simulate
