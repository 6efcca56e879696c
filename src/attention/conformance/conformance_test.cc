#include <gtest/gtest.h>

#include <set>

#include "attention/backends/reference/backend.h"
#include "attention/conformance/cases.h"
#include "attention/conformance/driver.h"
#include "attention/conformance/faults.h"

namespace quire::conformance {
namespace {

std::string told(const VerifyReport& report) {
  std::string text;
  for (const RowReport& row : report.rows) {
    text += row.name + ": " + std::to_string(row.passed) + " passed, " + std::to_string(row.failed) +
            " failed, " + std::to_string(row.skipped) + " skipped, " + std::to_string(row.seconds) +
            " s, worst " + row.worst.name + " " + std::to_string(row.worst.error) + " of " +
            std::to_string(row.worst.gate) + "\n";
    for (const std::string& failure : row.failures) text += "  " + failure + "\n";
  }
  return text;
}

TEST(Verify, EveryRowPasses) {
  const auto report = verify(attention::backends(platform::Kind::cpu), {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->passed) << told(*report);
  std::printf("%s", told(*report).c_str());
}

class PlantedFault : public testing::TestWithParam<Fault> {};

// A report that passes under a fault means that the judge is blind to it.
TEST_P(PlantedFault, IsCaughtInEveryRow) {
  const auto report =
      verify(attention::backends(platform::Kind::cpu), {.fault = std::string(GetParam().name)});
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->passed);
  for (const RowReport& row : report->rows) {
    if (row.passed > 0) {
      EXPECT_GT(row.failed, 0) << told(*report);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Faults, PlantedFault, testing::ValuesIn(faults().begin(), faults().end()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Verify, UnknownNamesAreAnsweredWithTheList) {
  const auto no_fault = verify(attention::backends(platform::Kind::cpu), {.fault = "nothing"});
  ASSERT_FALSE(no_fault.ok());
  for (const Fault& fault : faults()) EXPECT_NE(no_fault.error().message.find(fault.name), std::string::npos);
  const auto no_row = verify(attention::backends(platform::Kind::cpu), {.backend = "nothing"});
  ASSERT_FALSE(no_row.ok());
  EXPECT_NE(no_row.error().message.find("reference"), std::string::npos);
}

TEST(Verify, SharesAreTheWhole) {
  attention::Backend row = attention::reference_backend();
  row.caps.boxes = row.caps.boxes.first(1);
  const auto cases = [&row](int share, int shares) {
    const auto report = verify({&row, 1}, {.share = share, .shares = shares});
    EXPECT_TRUE(report.ok() && report->passed);
    return report.ok() ? report->rows[0].cases : 0;
  };
  const int first = cases(1, 3), second = cases(2, 3), third = cases(3, 3);
  EXPECT_EQ(first + second + third, cases(1, 1));
  EXPECT_GT(third, first / 2);
  for (const auto& [share, shares] : {std::pair{0, 3}, {4, 3}, {1, 0}})
    EXPECT_FALSE(verify({&row, 1}, {.share = share, .shares = shares}).ok()) << share << " of " << shares;
  const auto empty = verify({&row, 1}, {.share = 4000, .shares = 4000});
  EXPECT_TRUE(!empty.ok() && empty.error().message.find("fewer shares") != std::string::npos);
  const auto fault = verify({&row, 1}, {.share = 1, .shares = 3, .fault = "window_off_by_one"});
  EXPECT_TRUE(!fault.ok() && fault.error().message.find("--share") != std::string::npos);
}

TEST(Sweep, MeetsEveryPairThatCanOccurAndRepeatsBySeed) {
  const attention::Backend row = attention::reference_backend();
  const Sweep a = make_sweep(row, 0, 7, 10);
  const Sweep b = make_sweep(row, 0, 7, 10);
  ASSERT_EQ(a.cases.size(), b.cases.size());
  for (std::size_t i = 0; i < a.cases.size(); ++i) EXPECT_EQ(name_of(a.cases[i]), name_of(b.cases[i]));
  EXPECT_NE(name_of(a.cases[0]), name_of(make_sweep(row, 0, 8, 10).cases[0]));
  EXPECT_LT(a.pairs_impossible, a.pairs_covered / 10);
  std::size_t seen = 0;
  for (std::size_t x = 0; x < a.axes.size(); ++x)
    for (std::size_t y = x + 1; y < a.axes.size(); ++y) {
      std::set<std::pair<int, int>> pairs;
      for (std::size_t i = 0; i + 10 < a.cases.size(); ++i)
        pairs.insert({a.cases[i].values[x], a.cases[i].values[y]});
      seen += pairs.size();
    }
  EXPECT_EQ(seen, static_cast<std::size_t>(a.pairs_covered));
}

}  // namespace
}  // namespace quire::conformance
