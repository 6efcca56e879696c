// No timing is judged: only that what would be timed on a device is right, the shared prefix included, which
// verify's cases are too short to show at size.
#include <gtest/gtest.h>

#include "attention/bench/bench.h"

namespace quire::attention::bench {
namespace {

constexpr Options kQuick{.rounds = 1, .round_seconds = 0.0, .rotation_bytes = 8 << 20};

std::vector<CellSpec> specs() {
  std::vector<CellSpec> list;
  const auto add = [&](Shape shape, DType type) {
    CellSpec spec{.backend = "cuda", .shape = shape};
    spec.kv.k_type = spec.kv.v_type = type;
    if (type == DType::fp8_e4m3) spec.kv.scale = KvScaleKind::token_head;
    list.push_back(spec);
  };
  for (const DType type : {DType::bf16, DType::f16, DType::fp8_e4m3}) {
    add({.batch = 3, .context = 1000}, type);
    add({.q_heads = 64, .batch = 1, .context = 300, .q_len = 300}, type);
    add({.q_heads = 128,
         .kv_heads = 1,
         .qk_dim = 576,
         .v_dim = 512,
         .batch = 2,
         .context = 700,
         .latent = true},
        type);
    add({.batch = 16, .context = 1088, .shared = 1024, .hinted = true}, type);
  }
  return list;
}

TEST(BenchOnDevice, WhatIsTimedIsRight) {
  const auto cuda = std::move(platform::open_device("cuda", {}).value());
  const auto report = bench_attention(*cuda, backends(platform::Kind::cuda), specs(), kQuick);
  ASSERT_TRUE(report.ok()) << report.error().message;
  for (const AttentionCell& cell : report->cells) {
    EXPECT_TRUE(cell.refused.empty()) << cell.refused;
    EXPECT_GT(cell.check_error, 0.0);
    EXPECT_LE(cell.check_error, cell.check_gate) << cell.call << " " << cell.kv_dtype;
    EXPECT_GT(cell.us, 0.0);
  }
}

}  // namespace
}  // namespace quire::attention::bench
