#include "kv/slabs.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::kv {
namespace {

SlabPlan planned(const std::vector<std::int64_t>& strides, std::int64_t arena) {
  Result<SlabPlan> plan = plan_slabs(strides, arena);
  EXPECT_TRUE(plan.ok());
  return *plan;
}

TEST(Slabs, OneGroupLosesOnePageOnly) {
  for (const std::int64_t stride : {64, 23040, 23040 * 64, 5898240}) {
    for (const std::int64_t pages : {40, 128, 5000}) {
      const SlabPlan plan = planned({stride}, stride * pages);
      EXPECT_EQ(plan.page_strides[0], stride);
      const std::int64_t slabs = stride * pages / plan.slab_bytes;
      EXPECT_LE(pages - plan.most_pages(GroupId{0}, slabs), 1 + pages / 64);
      EXPECT_EQ(plan.most_pages(GroupId{0}, slabs) + 1, slabs * plan.slab_bytes / stride);
    }
  }
}

TEST(Slabs, CommonMultipleOfUnlikeGroups) {
  // 22 window layers and 4 full ones: unpadded, because 44 layers' worth is a small multiple.
  const std::int64_t layer = 16384;
  const SlabPlan plan = planned({4 * layer, 22 * layer}, std::int64_t{1} << 30);
  EXPECT_EQ(plan.page_strides, (std::vector<std::int64_t>{4 * layer, 22 * layer}));
  EXPECT_EQ(plan.slab_bytes % (44 * layer), 0);
  EXPECT_EQ(plan.head, GroupId{1});
  EXPECT_GE(plan.pages_per_slab[1], 16);
}

TEST(Slabs, PadsOnlyWhereTheMultipleIsAbsurd) {
  const SlabPlan plan = planned({64 * 10007, 64 * 9973}, 64 * 10007 * std::int64_t{4000});
  EXPECT_LT(plan.slab_bytes, 64 * 10007 * std::int64_t{400});
  for (std::size_t g = 0; g < 2; ++g) {
    const std::int64_t asked = g == 0 ? 64 * 10007 : 64 * 9973;
    EXPECT_LE((plan.page_strides[g] - asked) * 50, asked);
  }
}

TEST(Slabs, EveryPlanFillsItsSlabsExactly) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int64_t> strides(1 + random() % kMaxGroups);
    for (std::int64_t& stride : strides) stride = 4 * static_cast<std::int64_t>(1 + random() % 100000);
    const auto arena = static_cast<std::int64_t>(random() % (std::uint64_t{1} << 36));
    const SlabPlan plan = planned(strides, arena);
    for (std::size_t g = 0; g < strides.size(); ++g) {
      ASSERT_GE(plan.page_strides[g], strides[g]);
      ASSERT_GE(plan.pages_per_slab[g], 1);
      ASSERT_EQ(plan.page_strides[g] * plan.pages_per_slab[g], plan.slab_bytes);
      ASSERT_LE(plan.page_strides[g], plan.page_strides[plan.head.value]);
    }
  }
}

TEST(Slabs, CountsToSlabsAndBack) {
  const SlabPlan plan = planned({100, 400}, 100000);
  PageCounts counts;
  counts.of = {plan.pages_per_slab[0] + 1, plan.pages_per_slab[1] - 1};
  EXPECT_EQ(plan.slabs_for(counts), 3);  // two, and slab 0 filled but for page 0
  counts.of[1] += 1;
  EXPECT_EQ(plan.slabs_for(counts), 4);
  EXPECT_EQ(plan.least_slabs(), plan.pages_per_slab[1] > 1 ? 2 : 3);
}

TEST(Slabs, RefusesNonsense) {
  EXPECT_FALSE(plan_slabs({}, 1 << 20).ok());
  const std::vector<std::int64_t> zero = {0};
  EXPECT_FALSE(plan_slabs(zero, 1 << 20).ok());
  const std::vector<std::int64_t> many(kMaxGroups + 1, 64);
  EXPECT_FALSE(plan_slabs(many, 1 << 20).ok());
}

}  // namespace
}  // namespace quire::kv
