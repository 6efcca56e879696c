// No timing is judged here: only that checks run, that nothing is counted twice and that refusals tell.
#include "attention/bench/bench.h"

#include <gtest/gtest.h>

namespace quire::attention::bench {
namespace {

constexpr Options kQuick{.rounds = 1, .round_seconds = 0.0, .rotation_bytes = 2 << 20};

std::unique_ptr<platform::Device> device() { return std::move(platform::open_device("cpu", {2}).value()); }

TEST(BenchAttention, ChecksThenTimesEveryPhase) {
  const auto cpu = device();
  std::vector<CellSpec> specs;
  for (std::int32_t q_len : {1, 90}) {
    CellSpec spec{.backend = "cpu", .shape = {9, 3, 64, 64, 2, 300, q_len}};
    specs.push_back(spec);
    spec.kv.k_type = spec.kv.v_type = DType::fp8_e4m3;
    spec.kv.scale = KvScaleKind::tensor;
    specs.push_back(spec);
  }
  const auto report = bench_attention(*cpu, backends(platform::Kind::cpu), specs, kQuick);
  ASSERT_TRUE(report.ok()) << report.error().message;
  for (const AttentionCell& cell : report->cells) {
    EXPECT_GT(cell.check_error, 0.0);
    EXPECT_LE(cell.check_error, cell.check_gate) << cell.call;
    EXPECT_GT(cell.us, 0.0);
    EXPECT_GT(cell.fraction, 0.0);
    // bytes of one layer: 2 sequences, 300 keys, 3 heads, K and V of 64
    const double element = cell.kv_dtype == "bf16" ? 2.0 : 1.0;
    EXPECT_NEAR(cell.bytes_s * cell.us * 1e-6, 2 * 300 * 3 * 128 * element, 1.0);
  }
  // Causal pairs of 90 rows over 300 keys.
  EXPECT_NEAR(report->cells[2].flop_s * report->cells[2].us * 1e-6,
              4.0 * 64 * 9 * 2 * (210 * 90 + 90 * 91 / 2), 100.0);
  EXPECT_GT(report->ceilings.read_bytes_s, 0.0);
  EXPECT_EQ(report->ceilings.threads, 2);
}

TEST(BenchAttention, NamesWhatItCannotServe) {
  const auto cpu = device();
  const auto unknown = bench_attention(*cpu, backends(platform::Kind::cpu), {{.backend = "nothing"}}, kQuick);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("reference"), std::string::npos);
  const CellSpec odd{.backend = "cpu", .shape = {2, 1, 20, 20, 1, 64, 1}};
  const CellSpec even{.backend = "cpu", .shape = {2, 1, 16, 16, 1, 64, 1}};
  const auto mixed = bench_attention(*cpu, backends(platform::Kind::cpu), {odd, even}, kQuick);
  ASSERT_TRUE(mixed.ok());
  EXPECT_FALSE(mixed->cells[0].refused.empty());
  EXPECT_EQ(mixed->cells[0].us, 0.0);
  EXPECT_TRUE(mixed->cells[1].refused.empty());
  EXPECT_GT(mixed->cells[1].us, 0.0);
  const auto refused = bench_attention(*cpu, backends(platform::Kind::cpu), {odd, odd}, kQuick);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::bad_input);
  const std::string& why = refused.error().message;
  EXPECT_NE(why.find(mixed->cells[0].refused), std::string::npos) << why;
  EXPECT_EQ(why.find("head dims 20"), why.rfind("head dims 20")) << "the same reason twice: " << why;
}

TEST(BenchDevice, MeasuresEveryCeiling) {
  const auto cpu = device();
  const auto ceilings = bench_device(*cpu, kQuick);
  ASSERT_TRUE(ceilings.ok());
  EXPECT_GT(ceilings->read_bytes_s, 0.0);
  EXPECT_GT(ceilings->copy_bytes_s, 0.0);
  EXPECT_GT(ceilings->matmul_flop_s[0].second, 0.0);
  EXPECT_GT(ceilings->launch_us, 0.0);
  EXPECT_GT(ceilings->graph_node_us, 0.0);
}

}  // namespace
}  // namespace quire::attention::bench
