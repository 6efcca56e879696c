#include <gtest/gtest.h>

#include <cmath>

#include "ops/cpu/testing.h"

namespace quire::ops::cpu {
namespace {

using testing::random_floats;
using testing::random_weight;
using testing::Rig;
using testing::view;

// A device's sequence state and the buffers of a step, with two groups of different page sizes.
struct StepRig : Rig {
  static constexpr int kSlots = 5, kHistory = 64, kTable = 8;
  std::vector<std::int32_t> length = std::vector<std::int32_t>(kSlots), last = length, prompt = length;
  std::vector<std::int32_t> history = std::vector<std::int32_t>(kSlots * kHistory, -1);
  std::vector<std::uint32_t> slots[2], rows[2];
  std::vector<std::int64_t> write[2];
  std::vector<std::int32_t> tokens, positions, offsets, kv_lens;

  StepRig() : Rig(platform::cpu::best_isa()) {
    for (int g = 0; g < 2; ++g) {
      slots[g].assign(kSlots * kTable, 0);
      rows[g].assign(4 * kTable, 999);
      write[g].assign(12, -7);
    }
    tokens.assign(12, -7);
    positions = tokens;
    offsets.assign(5, -7);
    kv_lens.assign(4, -7);
  }
  SequenceState state() { return {length.data(), last.data(), prompt.data(), history.data(), kHistory}; }
  BeginStep step(const std::vector<StepRow>& step_rows, const std::vector<std::int32_t>& literals,
                 const std::vector<TableDelta>& deltas, const std::int32_t* delta_count) {
    BeginStep s;
    s.state = state();
    s.rows = step_rows.data();
    s.literals = literals.data();
    s.deltas = deltas.data();
    s.delta_count = delta_count;
    s.batch = static_cast<std::int32_t>(step_rows.size());
    s.total_q = 12;
    s.padded_kv_len = 1;
    s.group_count = 2;
    for (int g = 0; g < 2; ++g)
      s.groups[g] = {slots[g].data(), rows[g].data(), kTable, g == 0 ? 4 : 7, write[g].data()};
    s.tokens = tokens.data();
    s.positions = positions.data();
    s.q_offsets = offsets.data();
    s.kv_lens = kv_lens.data();
    return s;
  }
};

TEST(BeginStep, ResolvesTokensPositionsAndPagesOnTheDevice) {
  StepRig rig;
  rig.length = {0, 6, 0, 9, 0};
  rig.last = {0, 55, 0, 77, 0};
  const std::vector<TableDelta> deltas = {{0, 1, 0, 3},  {0, 1, 1, 4},  {0, 3, 2, 8},
                                          {0, 2, 0, 5},  {0, 2, 1, 6},  {1, 1, 0, 11},
                                          {1, 3, 1, 12}, {1, 2, 0, 13}, {1, 2, 0, 14}};
  const std::int32_t delta_count = static_cast<std::int32_t>(deltas.size());
  // Slot 3 goes on with its last output, slot 2 starts with five literals, one padded row.
  const std::vector<StepRow> rows = {{3, 1, 0, -1}, {1, 1, 1, -1}, {2, 5, 2, 0}, {0, 1, 7, -1}};
  const std::vector<std::int32_t> literals = {20, 21, 22, 23, 24};
  const BeginStep step = rig.step(rows, literals, deltas, &delta_count);
  rig.ops->begin_step(step, *rig.stream);
  rig.ops->end_step({rig.state(), rows.data(), 4}, *rig.stream);
  rig.stream->synchronize();
  EXPECT_EQ(rig.tokens, (std::vector<std::int32_t>{77, 55, 20, 21, 22, 23, 24, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rig.positions, (std::vector<std::int32_t>{9, 6, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rig.offsets, (std::vector<std::int32_t>{0, 1, 2, 7, 8}));
  EXPECT_EQ(rig.kv_lens, (std::vector<std::int32_t>{10, 7, 5, 1}));
  EXPECT_EQ(rig.write[0],
            (std::vector<std::int64_t>{8 * 4 + 1, 4 * 4 + 2, 20, 21, 22, 23, 24, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rig.write[1],
            (std::vector<std::int64_t>{12 * 7 + 2, 11 * 7 + 6, 98, 99, 100, 101, 102, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rig.length, (std::vector<std::int32_t>{0, 7, 5, 10, 0}));
  EXPECT_EQ(rig.history[3 * 64 + 9], 77);
  EXPECT_EQ(rig.history[2 * 64 + 4], 24);
  EXPECT_EQ(rig.history[2 * 64 + 5], -1);
  EXPECT_EQ(rig.rows[0][2], 8u);
  EXPECT_EQ(rig.rows[0][StepRig::kTable], 3u);
  EXPECT_EQ(rig.rows[0][StepRig::kTable + 1], 4u);
  EXPECT_EQ(rig.rows[1][2 * StepRig::kTable], 14u) << "of two deltas for one entry the later holds";
  EXPECT_EQ(rig.rows[0][3 * StepRig::kTable], 0u) << "a padded row reads page 0";
}

// Recorded once, replayed: lengths move on the device, the recording does not change.
TEST(BeginStep, ReplayAdvances) {
  StepRig rig;
  rig.length = {0, 2, 0, 0, 0};
  rig.last[1] = 40;
  for (unsigned i = 0; i < 8; ++i) rig.slots[0][8 + i] = 20 + i, rig.slots[1][8 + i] = 30 + i;
  const std::int32_t none = 0;
  const std::vector<StepRow> rows = {{1, 1, 0, -1}};
  const BeginStep step = rig.step(rows, {}, {}, &none);
  rig.stream->begin_capture();
  rig.ops->begin_step(step, *rig.stream);
  rig.ops->end_step({rig.state(), rows.data(), 1}, *rig.stream);
  const auto graph = rig.stream->end_capture();
  for (std::int32_t position = 2; position < 20; ++position) {
    rig.stream->launch(*graph);
    rig.stream->synchronize();
    EXPECT_EQ(rig.positions[0], position);
    EXPECT_EQ(rig.write[0][0], (20 + position / 4) * 4 + position % 4);
    EXPECT_EQ(rig.write[1][0], (30 + position / 7) * 7 + position % 7);
  }
}

TEST(Embed, DequantisesRowsOfEveryTableFormat) {
  Rig rig(platform::cpu::best_isa());
  const ProductTable products(platform::cpu::best_isa());
  for (const LinearFormat& line : rig.ops->linear_formats()) {
    const auto w = random_weight(line.format, 50, 512, 3);
    const std::vector<float> values = testing::dequantised(products, w.view);
    const std::vector<std::int32_t> tokens = {49, 0, 7, 7, 31};
    std::vector<float> y(5 * 600, NAN);
    rig.ops->embed({w.view, tokens.data(), 2.5f, view(y, 5, 512, 600)}, *rig.stream);
    rig.stream->synchronize();
    for (std::size_t r = 0; r < 5; ++r) {
      for (std::size_t c = 0; c < 512; ++c) {
        ASSERT_EQ(y[r * 600 + c], values[static_cast<std::size_t>(tokens[r]) * 512 + c] * 2.5f);
      }
      EXPECT_TRUE(std::isnan(y[r * 600 + 512]));
    }
  }
}

TEST(GatherRows, CopiesTheNamedRows) {
  Rig rig(platform::cpu::best_isa());
  std::vector<float> x = random_floats(10 * 33, 1), y(4 * 33);
  const std::vector<std::int32_t> index = {9, 0, 3, 9};
  rig.ops->gather_rows({view(x, 10, 33), index.data(), view(y, 4, 33)}, *rig.stream);
  rig.stream->synchronize();
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(std::equal(y.begin() + static_cast<long>(r * 33), y.begin() + static_cast<long>(r * 33 + 33),
                           x.begin() + index[r] * 33));
  }
}

}  // namespace
}  // namespace quire::ops::cpu
