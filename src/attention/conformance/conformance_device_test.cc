#include <gtest/gtest.h>

#include "attention/conformance/driver.h"
#include "attention/conformance/faults.h"

namespace quire::conformance {
namespace {

std::string told(const VerifyReport& report) {
  std::string text;
  for (const RowReport& row : report.rows) {
    text += row.name + ": " + std::to_string(row.passed) + " passed, " + std::to_string(row.failed) +
            " failed, " + std::to_string(row.skipped) + " skipped, worst " + row.worst.name + "\n";
    for (const std::string& failure : row.failures) text += "  " + failure + "\n";
  }
  return text;
}

TEST(VerifyOnDevice, EveryRowPasses) {
  const auto report = verify(attention::backends(platform::Kind::cuda), {.device = "cuda"});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->passed) << told(*report);
}

class PlantedFaultOnDevice : public testing::TestWithParam<Fault> {};

TEST_P(PlantedFaultOnDevice, IsCaughtInEveryRow) {
  const auto report = verify(attention::backends(platform::Kind::cuda),
                             {.device = "cuda", .fault = std::string(GetParam().name)});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_FALSE(report->passed);
  for (const RowReport& row : report->rows) {
    if (row.passed > 0) {
      EXPECT_GT(row.failed, 0) << told(*report);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Faults, PlantedFaultOnDevice, testing::ValuesIn(faults().begin(), faults().end()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire::conformance
