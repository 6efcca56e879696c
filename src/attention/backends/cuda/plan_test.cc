#include "attention/backends/cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

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
  g.wide = {{.tile_rows = 128, .threads = 128, .v_pad = 128, .least_tiles = 12, .unit_cost = 10}, 264};
  g.prefix = prefix_launch(g.wide, 132);
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

// 64 sequences share a prefix: however long it is, no block has much more of it than another.
TEST(CudaPlan, PrefixesAreDealtInEqualParts) {
  const Geometry g = geometry(4, true);
  const Launch& prefix = g.prefix;
  EXPECT_EQ(prefix.kernel.tile_rows, g.wide.kernel.tile_rows);
  EXPECT_EQ(prefix.kernel.unit_cost, 0);
  EXPECT_EQ(prefix.parts, 132);
  const std::int64_t units = 64 * g.ratio / prefix.kernel.tile_rows;
  for (const std::int64_t keys : {2048, 8192, 8256, 131072}) {
    const std::int64_t all = units * (keys / kTileKeys) * g.kv_heads;
    const std::int64_t part = places_of_part(all, prefix.parts, prefix.kernel.least_tiles);
    const std::int64_t used = (all + part - 1) / part;
    EXPECT_LE(used, prefix.parts) << keys;
    // No part has a tile more than a fair share, rounded up, unless it would be too short.
    EXPECT_LE(part, std::max<std::int64_t>(prefix.kernel.least_tiles, all / prefix.parts + 1)) << keys;
  }
}

// What a plan's kernel and a join compute of the same line: every place in one part, every piece of a cut
// unit in a slot of its own, in the order of the keys.
TEST(CudaPlan, PiecesOfCutUnitsHaveSlotsOfTheirOwn) {
  std::mt19937 rng(11);
  const auto upto = [&](std::int32_t most) {
    return 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(most));
  };
  for (int i = 0; i < 300; ++i) {
    const std::int32_t cost = static_cast<std::int32_t>(rng() % 5), heads = upto(8), parts = upto(300);
    std::vector<std::int32_t> tiles(static_cast<std::size_t>(upto(20)));
    std::int64_t line = 0;
    for (std::int32_t& t : tiles) line += (t = upto(i % 2 == 0 ? 6 : 200)) + cost;
    const auto part_tiles = static_cast<std::int32_t>(places_of_part(line * heads, parts, upto(12)));
    std::vector<int> taken(static_cast<std::size_t>(parts) * 2);
    std::int64_t at = 0;
    for (std::int32_t head = 0; head < heads; ++head)
      for (const std::int32_t t : tiles) {
        const Cut cut = cut_at(at, t, part_tiles);
        ASSERT_LT(cut.last_part, parts);
        std::int64_t held = 0;
        for (std::int64_t part = cut.first_part; part <= cut.last_part; ++part) {
          held += std::min(at + t, (part + 1) * part_tiles) - std::max(at, part * part_tiles);
          if (cut.first_part != cut.last_part) ++taken[static_cast<std::size_t>(slot_of(cut, part))];
        }
        EXPECT_EQ(held, t);
        at += t + cost;
      }
    for (const int pieces : taken) EXPECT_LE(pieces, 1);
  }
}

}  // namespace
}  // namespace quire::attention::cuda
