#include "attention/backends/cuda/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace quire::attention::cuda {
namespace {

Geometry geometry(std::int32_t ratio, bool cascade) {
  Geometry g;
  g.kv_heads = 8;
  g.ratio = ratio;
  g.q_heads = g.kv_heads * ratio;
  g.qk_dim = g.v_dim = 128;
  g.cascade = cascade;
  g.few = {{.tile_rows = 8, .threads = 128, .v_pad = 128}, 528};
  g.narrow = {{.tile_rows = 16, .threads = 128, .v_pad = 128}, 264};
  g.wide = {{.tile_rows = 128, .threads = 128, .v_pad = 128}, 264};
  return g;
}

TEST(CudaPlan, AFormServesWhatItsRowsHold) {
  const Geometry g = geometry(4, false);
  EXPECT_EQ(launch_for(g, 1).kernel.tile_rows, 8);
  EXPECT_EQ(launch_for(g, 2).kernel.tile_rows, 8);
  EXPECT_EQ(launch_for(g, 3).kernel.tile_rows, 16);
  EXPECT_EQ(launch_for(g, 4).kernel.tile_rows, 16);
  EXPECT_EQ(launch_for(g, 5).kernel.tile_rows, 128);
  EXPECT_EQ(launch_for(geometry(16, false), 1).kernel.tile_rows, 16);
  EXPECT_EQ(launch_for(geometry(32, false), 1).kernel.tile_rows, 128);
}

// plan() and run() lay the buffer out from a shape, the engine sizes it from its limits.
TEST(CudaPlan, LimitsHoldEveryShapeWithinThem) {
  std::mt19937 rng(3);
  const auto upto = [&](std::int32_t most) {
    return 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(most));
  };
  for (int i = 0; i < 500; ++i) {
    const Geometry g = geometry(upto(16), i % 2 == 0);
    Limits limits;
    limits.max_batch = upto(64);
    limits.max_q = upto(40);
    limits.max_total_q = std::max(limits.max_batch, upto(limits.max_batch * limits.max_q));
    const std::int64_t bytes = plan_bytes(g, limits);
    const Bounds bounds{upto(limits.max_batch), upto(limits.max_total_q)};
    const std::int32_t max_q = upto(limits.max_q);
    EXPECT_LE(make_layout(g, launch_for(g, max_q), bounds, nullptr).bytes, bytes)
        << limits.max_batch << " " << limits.max_total_q << " " << limits.max_q << " held " << bounds.batch
        << " " << bounds.total_q << " " << max_q;
  }
}

TEST(CudaPlan, UnitsOfEveryBatchHaveTheirPlace) {
  std::mt19937 rng(5);
  for (int i = 0; i < 500; ++i) {
    const Geometry g = geometry(1 + static_cast<std::int32_t>(rng() % 9), false);
    Bounds bounds;
    std::int32_t units = 0;
    const Launch& launch = i % 3 == 0 ? g.few : i % 3 == 1 ? g.narrow : g.wide;
    for (unsigned s = rng() % 20; s-- > 0;) {
      const auto q_len = static_cast<std::int32_t>(rng() % 200);
      bounds.total_q += q_len;
      units += (q_len * g.ratio + launch.kernel.tile_rows - 1) / launch.kernel.tile_rows;
      ++bounds.batch;
    }
    EXPECT_LE(units, make_layout(g, launch, bounds, nullptr).plan.unit_capacity);
  }
}

TEST(CudaPlan, GroupsThatACascadeFollows) {
  const Geometry g = geometry(4, true);
  const PrefixGroup groups[] = {{0, 8, 512}, {2, 6, 768}, {8, 9, 64}, {8, 12, 128}};
  StepShape shape;
  shape.batch = 12;
  shape.prefix_groups = groups;
  shape.prefix_group_count = 4;
  const Groups followed = groups_of(g, shape);
  ASSERT_EQ(followed.count, 2);  // the nested one and the one of a single sequence are left out
  EXPECT_EQ(followed.shared[0], 512);
  EXPECT_EQ(followed.begin[1], 8);
  EXPECT_EQ(followed.end[1], 12);
  shape.mask = MaskKind::window;
  EXPECT_EQ(groups_of(g, shape).count, 0);
  shape.mask = MaskKind::causal;
  const std::uint64_t bits = 1;
  shape.tree_bits = &bits;
  EXPECT_EQ(groups_of(g, shape).count, 0);
  shape.tree_bits = nullptr;
  EXPECT_EQ(groups_of(geometry(4, false), shape).count, 0);
}

}  // namespace
}  // namespace quire::attention::cuda
