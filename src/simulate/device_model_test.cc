#include "simulate/device_model.h"

#include <gtest/gtest.h>

namespace quire::simulate {
namespace {

StepLoad decode(double batch, double context) { return {batch, batch * context, 0, 0, batch}; }
StepLoad prompt(double chunk, double context) {
  return {0, 0, chunk, chunk * context + chunk * (chunk + 1) / 2, 1};
}

std::vector<Measured> cells_of(const DeviceModel& model, double noise) {
  std::vector<Measured> cells;
  double sign = 1.0;
  const auto add = [&](const StepLoad& load) {
    cells.push_back({load, model.seconds(load) * (1.0 + noise * sign)});
    sign = -sign;
  };
  for (const double context : {64.0, 512.0, 4096.0}) {
    for (const double batch : {1.0, 4.0, 16.0}) add(decode(batch, context));
    for (const double chunk : {4.0, 16.0, 64.0, 512.0}) add(prompt(chunk, context));
  }
  return cells;
}

// Two tiles' worth of rows take hardly longer than one row, as on a real machine.
const DeviceModel kTruth = {{{1, 3e-3}, {4, 3.1e-3}, {16, 6e-3}, {64, 9e-3}, {512, 50e-3}}, 2e-4, 5e-8, 3e-9};

TEST(DeviceModel, TheCurveGoesThroughItsPointsAndOnBeyondThem) {
  EXPECT_DOUBLE_EQ(kTruth.rows_seconds(4), 3.1e-3);
  EXPECT_DOUBLE_EQ(kTruth.rows_seconds(10), (3.1e-3 + 6e-3) / 2);
  EXPECT_DOUBLE_EQ(kTruth.rows_seconds(960), 50e-3 + 41e-3);
  const DeviceModel later = {{{16, 20e-3}, {64, 68e-3}}, 0, 0, 0};
  EXPECT_DOUBLE_EQ(later.rows_seconds(1), 5e-3);
  const DeviceModel one = {{{16, 20e-3}}, 0, 0, 0};
  EXPECT_DOUBLE_EQ(one.rows_seconds(1), 20e-3);
  EXPECT_DOUBLE_EQ(one.rows_seconds(32), 40e-3);
  // A step with both kinds of rows: one product over all of them, the logits and keys of each kind.
  EXPECT_DOUBLE_EQ(kTruth.seconds({4, 400, 60, 5000, 5}), 9e-3 + 5 * 2e-4 + 400 * 5e-8 + 5000 * 3e-9);
}

TEST(DeviceModel, TheFitFindsTheCostsThatMadeTheTimes) {
  const Fit exact = fit(cells_of(kTruth, 0.0));
  EXPECT_NEAR(exact.model.logit_s, kTruth.logit_s, 1e-6 * kTruth.logit_s);
  EXPECT_NEAR(exact.model.key_s, kTruth.key_s, 1e-6 * kTruth.key_s);
  EXPECT_NEAR(exact.model.pair_s, kTruth.pair_s, 1e-6 * kTruth.pair_s);
  ASSERT_EQ(exact.model.rows.size(), kTruth.rows.size());
  for (std::size_t i = 0; i < kTruth.rows.size(); ++i) {
    EXPECT_EQ(exact.model.rows[i].rows, kTruth.rows[i].rows);
    EXPECT_NEAR(exact.model.rows[i].seconds, kTruth.rows[i].seconds, 1e-6 * kTruth.rows[i].seconds);
  }
  EXPECT_LT(exact.worst_error, 1e-6);
  EXPECT_EQ(exact.note, "");
  const Fit noisy = fit(cells_of(kTruth, 0.02));
  for (std::size_t i = 0; i < kTruth.rows.size(); ++i)
    EXPECT_NEAR(noisy.model.rows[i].seconds, kTruth.rows[i].seconds, 0.1 * kTruth.rows[i].seconds);
  EXPECT_LT(noisy.worst_error, 0.05);
  EXPECT_GT(noisy.mean_error, 0.002);
}

TEST(DeviceModel, NoCostIsNegative) {
  // Times that fall with the context: a plain least squares would pay for keys.
  std::vector<Measured> cells;
  for (const double batch : {1.0, 2.0, 4.0, 8.0})
    for (const double context : {100.0, 1000.0})
      cells.push_back({decode(batch, context), 2e-3 - 1e-6 * context});
  const Fit fitted = fit(cells);
  EXPECT_EQ(fitted.model.key_s, 0.0);
  EXPECT_GE(fitted.model.logit_s, 0.0);
  for (const DeviceModel::Point& point : fitted.model.rows) EXPECT_GT(point.seconds, 1e-3);
}

TEST(DeviceModel, TheNoteSaysWhatTheCellsDoNot) {
  const DeviceModel truth = {{{1, 1e-3}, {4, 2e-3}, {16, 6e-3}}, 0.0, 1e-8, 1e-9};
  const auto fitted = [&](const std::vector<StepLoad>& loads) {
    std::vector<Measured> cells;
    for (const StepLoad& load : loads) cells.push_back({load, truth.seconds(load)});
    return fit(cells);
  };
  const Fit decodes = fitted({decode(1, 64), decode(1, 1024), decode(16, 64), decode(16, 1024)});
  EXPECT_NE(decodes.note.find("--chunk"), std::string::npos);
  EXPECT_NEAR(decodes.model.key_s, 1e-8, 1e-11);
  EXPECT_EQ(decodes.model.pair_s, decodes.model.key_s);
  EXPECT_NEAR(decodes.model.seconds(prompt(16, 0)), 6e-3, 1e-5);
  const Fit prompts = fitted({prompt(4, 0), prompt(16, 0), prompt(16, 4096)});
  EXPECT_NE(prompts.note.find("no cell has decode rows"), std::string::npos);
  EXPECT_NEAR(prompts.model.pair_s, 1e-9, 1e-12);
  EXPECT_EQ(prompts.model.key_s, prompts.model.pair_s);
  const Fit one_context =
      fitted({decode(1, 64), decode(4, 64), prompt(4, 0), prompt(16, 0), prompt(16, 512)});
  EXPECT_NE(one_context.note.find("two contexts"), std::string::npos);
  EXPECT_EQ(one_context.model.key_s, 0.0);
  const Fit short_chunks = fitted({decode(1, 64), decode(1, 640), prompt(4, 0), prompt(16, 0)});
  EXPECT_NE(short_chunks.note.find("behind two contexts"), std::string::npos);
  EXPECT_EQ(short_chunks.model.pair_s, short_chunks.model.key_s);
  EXPECT_LT(short_chunks.worst_error, 1e-6);
}

TEST(DeviceModel, ReadsBenchStepAndRefusesWhatIsNot) {
  const Result<Fit> fitted = fit_bench_step(
      R"({"machine":{},"steps":[{"batch":1,"context":128,"ms":3.0},{"batch":8,"context":128,"ms":8.0},
          {"batch":8,"context":1024,"ms":9.0},{"batch":0,"context":0,"chunk":256,"ms":40.0}]})",
      "b.json");
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  EXPECT_EQ(fitted->cells, 4u);
  EXPECT_NE(fitted->note.find("behind two contexts"), std::string::npos) << fitted->note;
  EXPECT_LT(fitted->worst_error, 1e-6);  // four cells, three points and a slope
  for (const char* bad :
       {"", "[]", "{}", R"({"steps":[]})", R"({"steps":[{"batch":1,"context":3}]})",
        R"({"steps":[{"batch":1,"context":3,"ms":0}]})", R"({"steps":[{"batch":-1,"context":3,"ms":1}]})",
        R"({"steps":[{"batch":0,"context":3,"ms":1}]})"})
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
  plan.total_logits = 2;
  const std::vector<kv::GroupRule> full = {{kv::Keep::all, 0, 16}};
  const StepLoad load = load_of(plan, full);
  EXPECT_EQ(load.decode_rows, 1.0);
  EXPECT_EQ(load.keys, 100.0);
  EXPECT_EQ(load.prompt_tokens, 4.0);
  EXPECT_EQ(load.pairs, 11.0 + 12.0 + 13.0 + 14.0);
  EXPECT_EQ(load.logits, 2.0);
  EXPECT_EQ(load.rows(), 5.0);
  const std::vector<kv::GroupRule> both = {{kv::Keep::all, 0, 16}, {kv::Keep::window, 8, 16}};
  EXPECT_EQ(load_of(plan, both).keys, (100.0 + 8.0) / 2);
}

}  // namespace
}  // namespace quire::simulate
