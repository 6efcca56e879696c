#include "simulate/device_model.h"

#include <gtest/gtest.h>

namespace quire::simulate {
namespace {

std::vector<Measured> cells_of(const DeviceModel& model, double noise) {
  std::vector<Measured> cells;
  double sign = 1.0;
  for (const double batch : {0.0, 1.0, 4.0, 16.0}) {
    for (const double context : {64.0, 512.0, 4096.0}) {
      for (const double chunk : {0.0, 32.0, 512.0}) {
        if (batch == 0.0 && chunk == 0.0) continue;
        const StepLoad load{batch, batch * context, chunk, chunk * context + chunk * (chunk + 1) / 2};
        cells.push_back({load, model.seconds(load) * (1.0 + noise * sign)});
        sign = -sign;
      }
    }
  }
  return cells;
}

TEST(DeviceModel, TheFitFindsTheCostsThatMadeTheTimes) {
  const DeviceModel truth{3e-3, 2e-4, 5e-8, 9e-5, 3e-9};
  const Fit exact = fit(cells_of(truth, 0.0));
  EXPECT_NEAR(exact.model.step_s, truth.step_s, 1e-6 * truth.step_s);
  EXPECT_NEAR(exact.model.decode_row_s, truth.decode_row_s, 1e-6 * truth.decode_row_s);
  EXPECT_NEAR(exact.model.key_s, truth.key_s, 1e-6 * truth.key_s);
  EXPECT_NEAR(exact.model.prompt_s, truth.prompt_s, 1e-6 * truth.prompt_s);
  EXPECT_NEAR(exact.model.pair_s, truth.pair_s, 1e-6 * truth.pair_s);
  EXPECT_LT(exact.worst_error, 1e-6);
  const Fit noisy = fit(cells_of(truth, 0.05));
  EXPECT_NEAR(noisy.model.prompt_s, truth.prompt_s, 0.1 * truth.prompt_s);
  EXPECT_LT(noisy.worst_error, 0.11);
  EXPECT_GT(noisy.mean_error, 0.01);
}

TEST(DeviceModel, NoCostIsNegative) {
  // Times that fall with the batch: a plain least squares would pay for rows.
  std::vector<Measured> cells;
  for (const double batch : {1.0, 2.0, 4.0, 8.0})
    cells.push_back({{batch, batch * 100, 0, 0}, 2e-3 - 1e-4 * batch});
  const Fit fitted = fit(cells);
  EXPECT_GE(fitted.model.decode_row_s, 0.0);
  EXPECT_GE(fitted.model.key_s, 0.0);
  EXPECT_GT(fitted.model.step_s, 1e-3);
}

TEST(DeviceModel, WithoutChunksPromptTokensCostLikeRowsAndTheNoteSaysSo) {
  std::vector<Measured> cells;
  for (const double batch : {1.0, 4.0, 16.0})
    for (const double context : {64.0, 1024.0})
      cells.push_back({{batch, batch * context, 0, 0}, 1e-3 + 2e-4 * batch + 1e-8 * batch * context});
  const Fit fitted = fit(cells);
  EXPECT_EQ(fitted.model.prompt_s, fitted.model.decode_row_s);
  EXPECT_NEAR(fitted.model.pair_s, 1e-8, 1e-11);
  EXPECT_NE(fitted.note.find("--chunk"), std::string::npos);
}

TEST(DeviceModel, ReadsBenchStepAndRefusesWhatIsNot) {
  const Result<Fit> fitted = fit_bench_step(
      R"({"machine":{},"steps":[{"batch":1,"context":128,"ms":3.0},{"batch":8,"context":128,"ms":8.0},
          {"batch":8,"context":1024,"ms":9.0},{"batch":0,"context":0,"chunk":256,"ms":40.0}]})",
      "b.json");
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  EXPECT_EQ(fitted->cells, 4u);
  EXPECT_TRUE(fitted->note.empty());
  EXPECT_LT(fitted->worst_error, 1e-6);  // four cells, five costs
  for (const char* bad :
       {"", "[]", "{}", R"({"steps":[]})", R"({"steps":[{"batch":1,"context":3}]})",
        R"({"steps":[{"batch":1,"context":3,"ms":0}]})", R"({"steps":[{"batch":-1,"context":3,"ms":1}]})"})
    EXPECT_FALSE(fit_bench_step(bad, "b.json").ok()) << bad;
}

TEST(DeviceModel, LoadOfAPlan) {
  scheduler::StepPlan plan;
  scheduler::PlanRow decode;
  decode.kind = scheduler::RowKind::decode;
  decode.query_begin = 99;
  decode.query_count = 1;
  scheduler::PlanRow extend;
  extend.query_begin = 10;
  extend.query_count = 4;
  plan.rows = {decode, extend};
  const std::vector<kv::GroupRule> full = {{kv::Keep::all, 0, 16}};
  const StepLoad load = load_of(plan, full);
  EXPECT_EQ(load.decode_rows, 1.0);
  EXPECT_EQ(load.keys, 100.0);
  EXPECT_EQ(load.prompt_tokens, 4.0);
  EXPECT_EQ(load.pairs, 11.0 + 12.0 + 13.0 + 14.0);
  const std::vector<kv::GroupRule> both = {{kv::Keep::all, 0, 16}, {kv::Keep::window, 8, 16}};
  EXPECT_EQ(load_of(plan, both).keys, (100.0 + 8.0) / 2);
}

}  // namespace
}  // namespace quire::simulate
