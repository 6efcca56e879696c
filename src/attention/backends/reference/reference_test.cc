// The oracle against closed forms: what attention must give where that can be said without computing it.
#include "attention/backends/reference/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/backends/reference/decode.h"
#include "platform/platform.h"

namespace quire::attention {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One sequence, one KV head, dense float32 keys: set what matters, run, look at out and lse.
struct Tiny {
  explicit Tiny(int q_rows, int keys, int dim) : q_len(q_rows), kv_len(keys) {
    problem.q_heads = problem.kv_heads = 1;
    problem.qk_dim = problem.v_dim = dim;
    problem.kv.k_type = problem.kv.v_type = DType::f32;
    problem.source = KvSource::dense;
    q.assign(static_cast<std::size_t>(q_rows * dim), 1.0f);
    k.assign(static_cast<std::size_t>(keys * dim), 0.0f);
    v.assign(static_cast<std::size_t>(keys * dim), 0.0f);
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>(i / static_cast<std::size_t>(dim));  // V[j] = j
  }

  void run() {
    auto device = platform::open_device("cpu", {.compute = 2});
    ASSERT_TRUE(device.ok());
    auto stream = (*device)->make_stream();
    const Backend row = reference_backend();
    auto attention = row.make(problem, **device);
    const std::int32_t heads = problem.q_heads;
    const std::int32_t dim = problem.v_dim;
    out.assign(static_cast<std::size_t>(q_len * heads * dim), std::numeric_limits<float>::quiet_NaN());
    lse.assign(static_cast<std::size_t>(q_len * heads), std::numeric_limits<float>::quiet_NaN());
    shape.batch = 1;
    shape.total_q = shape.max_q = q_len;
    shape.max_kv = std::max(1, kv_len);
    const std::int32_t offsets[] = {0, q_len};
    const std::int64_t kv_offset = 0;
    shape.q_offsets = offsets;
    shape.kv_lens = &kv_len;
    shape.kv_offsets = &kv_offset;
    shape.mask = problem.mask;
    args.q = q.data();
    args.q_head_stride = problem.qk_dim;
    args.q_row_stride = std::int64_t{heads} * problem.qk_dim;
    args.out = out.data();
    args.out_head_stride = dim;
    args.out_row_stride = std::int64_t{heads} * dim;
    args.lse = lse.data();
    args.kv.format = problem.kv;
    args.kv.k = k.data();
    args.kv.v = v.data();
    const auto row_bytes = static_cast<std::int64_t>(sizeof(float)) * problem.qk_dim;
    args.kv.k_stride = args.kv.v_stride = {0, row_bytes, row_bytes * problem.kv_heads, sizeof(float)};
    Limits limits{.max_batch = 1, .max_total_q = q_len, .max_q = q_len, .max_kv = shape.max_kv, .threads = 2};
    std::vector<char> workspace(static_cast<std::size_t>(attention->workspace_bytes(limits)));
    const PlanBuffer buffer{workspace.data(), static_cast<std::int64_t>(workspace.size())};
    attention->plan(shape, buffer, *stream);
    attention->run(shape, args, buffer, *stream);
    stream->synchronize();
  }

  std::int32_t q_len;
  std::int32_t kv_len;
  Problem problem;
  StepShape shape;
  Args args;
  std::vector<float> q, k, v, out, lse;
};

TEST(Reference, EqualKeysGiveTheMeanOfV) {
  Tiny t(5, 5, 4);
  t.run();
  for (int r = 0; r < 5; ++r) {  // row r sees keys 0..r, whose values are 0..r
    EXPECT_FLOAT_EQ(t.out[static_cast<std::size_t>(r * 4)], static_cast<float>(r) / 2) << r;
    EXPECT_FLOAT_EQ(t.lse[static_cast<std::size_t>(r)], std::log(static_cast<float>(r + 1))) << r;
  }
}

TEST(Reference, OneHotKeysPickTheirValue) {
  Tiny t(1, 6, 4);
  t.args.scale = 100;
  std::fill_n(t.k.begin() + 3 * 4, 4, 1.0f);  // key 3 scores 400, the others 0
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], 3.0f);
  EXPECT_FLOAT_EQ(t.lse[0], 400.0f);
}

TEST(Reference, ASingleKeyIsItsValueWhateverTheScore) {
  for (float score : {-1e4f, 0.0f, 1e4f}) {
    Tiny t(1, 1, 1);
    t.k[0] = score;
    t.v[0] = 2.5f;
    t.run();
    EXPECT_FLOAT_EQ(t.out[0], 2.5f);
    EXPECT_FLOAT_EQ(t.lse[0], score);
  }
}

TEST(Reference, SinkJoinsTheDenominatorOnlyAndNotTheLse) {
  Tiny t(1, 3, 2);
  const float sink = std::log(3.0f);  // as much as the three keys together
  t.args.sink = &sink;
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], (0 + 1 + 2) / 6.0f);
  EXPECT_FLOAT_EQ(t.lse[0], std::log(3.0f));
  const float enormous = 1e30f;
  t.args.sink = &enormous;
  t.run();
  EXPECT_EQ(t.out[0], 0.0f);
}

TEST(Reference, SoftcapBoundsScores) {
  Tiny t(1, 1, 1);
  t.k[0] = 1000;
  t.args.softcap = 30;
  t.run();
  EXPECT_FLOAT_EQ(t.lse[0], 30.0f);
  t.k[0] = 15;
  t.args.q_descale = 2;
  t.run();
  EXPECT_FLOAT_EQ(t.lse[0], 30 * std::tanh(1.0f));
}

TEST(Reference, MasksShowTheNumberOfKeysThatTheirRuleSays) {
  const auto counts = [](MaskKind mask, int width) {
    Tiny t(10, 10, 1);
    t.problem.mask = mask;
    t.shape.mask_width = width;
    t.run();
    std::vector<int> list;
    for (float lse : t.lse)
      list.push_back(static_cast<int>(std::lround(std::exp(lse))));  // equal keys: lse = log n
    return list;
  };
  EXPECT_EQ(counts(MaskKind::causal, 0), (std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(counts(MaskKind::window, 3), (std::vector{1, 2, 3, 3, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(counts(MaskKind::chunked, 4), (std::vector{1, 2, 3, 4, 1, 2, 3, 4, 1, 2}));
  EXPECT_EQ(counts(MaskKind::full, 0), (std::vector<int>(10, 10)));
}

TEST(Reference, QueriesMayOutnumberKeysUnderTheFullMask) {
  Tiny t(5, 2, 1);
  t.problem.mask = MaskKind::full;
  t.run();
  for (float out : t.out) EXPECT_FLOAT_EQ(out, 0.5f);
}

TEST(Reference, RowsMaskAndEmptyIntervals) {
  Tiny t(3, 8, 1);
  const std::int32_t begin[] = {2, 5, 7}, end[] = {4, 5, 100};
  t.problem.mask = MaskKind::rows;
  t.shape.row_begin = begin;
  t.shape.row_end = end;
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], 2.5f);
  EXPECT_EQ(t.out[1], 0.0f);
  EXPECT_EQ(t.lse[1], kMinusInfinity);
  EXPECT_FLOAT_EQ(t.out[2], 7.0f);  // cut to kv_len
}

TEST(Reference, TreeRowsSeeTheirAncestorsAndTheIntervalBelowTheBase) {
  // Five committed keys; nodes 5, 6, 7 where 6 is 5's child and 7 a second root. Window of 3 keys.
  Tiny t(3, 8, 1);
  const std::uint64_t bits[] = {0b001, 0b011, 0b100};
  const std::int32_t base = 5, depth[] = {0, 1, 0};
  t.problem.mask = MaskKind::window;
  t.shape.mask_width = 3;
  t.shape.tree_bits = bits;
  t.shape.tree_words = 1;
  t.shape.tree_base = &base;
  t.shape.tree_depth = depth;
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], (3 + 4 + 5) / 3.0f);
  EXPECT_FLOAT_EQ(t.out[1], (4 + 5 + 6) / 3.0f);
  EXPECT_FLOAT_EQ(t.out[2], (3 + 4 + 7) / 3.0f);  // its slot is 7, its depth 0
}

TEST(Reference, APartShowsItsKeysOnly) {
  Tiny t(1, 8, 1);
  const std::int32_t begin = 2, end = 5;
  t.shape.part_begin = &begin;
  t.shape.part_end = &end;
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], 3.0f);
  EXPECT_FLOAT_EQ(t.lse[0], std::log(3.0f));
}

TEST(Reference, NoKeysGiveZeroAndMinusInfinity) {
  Tiny t(2, 0, 3);
  t.run();
  for (float out : t.out) EXPECT_EQ(out, 0.0f);
  for (float lse : t.lse) EXPECT_EQ(lse, kMinusInfinity);
}

TEST(Reference, SparseIndexNarrowsWhatTheMaskShows) {
  Tiny t(1, 6, 1);
  const std::int32_t list[] = {1, 4, 9, -1};  // 9 does not exist
  t.args.sparse = {.index = list, .index_heads = 1, .k = 4};
  t.run();
  EXPECT_FLOAT_EQ(t.out[0], 2.5f);
}

TEST(Reference, QueryHeadsShareKvHeadsByRatio) {
  Tiny t(1, 1, 2);
  t.problem.q_heads = 6;
  t.problem.kv_heads = 3;
  t.q.assign(12, 1.0f);
  t.k.assign(6, 0.0f);
  t.v = {10, 10, 20, 20, 30, 30};
  t.run();
  const float expected[] = {10, 10, 20, 20, 30, 30};
  for (int h = 0; h < 6; ++h) EXPECT_EQ(t.out[static_cast<std::size_t>(h * 2)], expected[h]);
}

TEST(ReferenceDecode, KnownValues) {
  EXPECT_EQ(reference::decode_fp8_e4m3(0x7e), 448.0);
  EXPECT_EQ(reference::decode_fp8_e4m3(0x01), std::ldexp(1.0, -9));
  EXPECT_EQ(reference::decode_fp8_e4m3(0x38), 1.0);
  EXPECT_EQ(reference::decode_fp8_e4m3(0xb8), -1.0);
  EXPECT_TRUE(std::isnan(reference::decode_fp8_e4m3(0x7f)));
  EXPECT_EQ(reference::decode_bits(0x3c00, 5, 10, true), 1.0);
  EXPECT_EQ(reference::decode_bits(0x7bff, 5, 10, true), 65504.0);
  EXPECT_EQ(reference::decode_bits(0x0001, 5, 10, true), std::ldexp(1.0, -24));
  EXPECT_TRUE(std::isinf(reference::decode_bits(0x7c00, 5, 10, true)));
}

// Every 16-bit value comes back from its own double, and halfway values go to the even neighbour.
TEST(ReferenceDecode, StoreInvertsLoadAndRoundsToEven) {
  for (DType type : {DType::f16, DType::bf16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      double value = 0;
      reference::load(type, &half, 1, 2, &value);
      if (std::isnan(value)) continue;
      std::uint16_t back = 0;
      reference::store(type, &back, 0, value);
      ASSERT_EQ(back, half) << static_cast<int>(type);
      const auto next_bits = static_cast<std::uint16_t>(bits + 1);
      double next = 0;
      reference::load(type, &next_bits, 1, 2, &next);
      if (!std::isfinite(value) || !std::isfinite(next) || (bits & 0x7fff) == 0x7fff) continue;
      reference::store(type, &back, 0, (value + next) / 2);
      ASSERT_EQ(back, bits % 2 ? next_bits : half) << bits;
    }
  }
}

}  // namespace
}  // namespace quire::attention
