#include "engine/executor_case.h"

namespace quire::engine::testing {
namespace {

TEST(Executor, RecordedStepsEqualEagerOnesBitForBit) {
  if (quire::testing::golden_dir().empty()) FAIL() << "no golden data";
  for (const char* model : {"llama", "deepseek_v3"}) expect_recorded_equals_eager("cpu", model);
}

TEST(Executor, RecordedMixedStepsEqualEagerOnesBitForBit) {
  if (quire::testing::golden_dir().empty()) FAIL() << "no golden data";
  for (const char* model : {"llama", "qwen3"}) expect_recorded_mix_equals_eager("cpu", model);
}

TEST(Executor, PaddingTouchesPageZeroOnly) {
  if (quire::testing::golden_dir().empty()) FAIL() << "no golden data";
  for (const char* model : {"llama", "deepseek_v3"}) expect_padding_touches_page_zero_only("cpu", model);
}

TEST(Executor, BucketsHoldEveryBatchWithLittlePadding) {
  for (const bool host_memory : {true, false}) {
    for (const std::int32_t most : {1, 3, 8, 100, 256, 1000}) {
      const std::vector<std::int32_t> buckets = Executor::buckets_of(most, host_memory);
      EXPECT_EQ(buckets.front(), 1);
      EXPECT_EQ(buckets.back(), most);
      EXPECT_LE(buckets.size(), 40u);
      for (std::size_t i = 1; i < buckets.size(); ++i) {
        EXPECT_LT(buckets[i - 1], buckets[i]);
        // A batch is padded to less than twice itself, and to at most a quarter more on a CPU (up to 8 not at
        // all) and, beyond 16, on a GPU.
        EXPECT_LE(buckets[i], 2 * buckets[i - 1]);
        if (host_memory && buckets[i] <= 8) {
          EXPECT_EQ(buckets[i], buckets[i - 1] + 1);
        } else if (host_memory || buckets[i - 1] >= 32) {
          EXPECT_LE(4 * buckets[i], 5 * buckets[i - 1]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::engine::testing
