#include "cli/bar_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <regex>

#include "cli/command.h"

namespace quire::cli {
namespace {

// Widths of the bars, in their order; the first rect is the ground.
std::vector<double> widths_of(const std::string& svg) {
  std::vector<double> widths;
  const std::regex bar("<rect x=\"\\d+\" y=\"\\d+\" width=\"([0-9.]+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), bar), end; at != end; ++at)
    widths.push_back(std::stod((*at)[1]));
  return widths;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(BarChart, BarsAreAsLongAsTheirValuesAndTheLimitCounts) {
  const BarChart plain{"a", {{"one", 1.0, "1"}, {"two", 2.0, "2"}, {"four", 4.0, "4"}}, 0, ""};
  const std::vector<double> widths = widths_of(to_svg({plain}));
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_NEAR(widths[1], 2 * widths[0], 0.2);
  EXPECT_NEAR(widths[2], 4 * widths[0], 0.3);
  BarChart limited = plain;
  limited.limit = 8.0;
  limited.limit_text = "ceiling";
  const std::string svg = to_svg({limited});
  EXPECT_NEAR(widths_of(svg)[2], widths[2] / 2, 0.2);
  EXPECT_EQ(count_of(svg, "<line"), 1u);
  EXPECT_EQ(count_of(svg, ">ceiling</text>"), 1u);
}

TEST(BarChart, WhatHasNoValueHasTextOnlyAndTextIsEscaped) {
  const BarChart odd{
      "a < b & \"c\"", {{"x", NAN, "refused: <why>"}, {"y", -1.0, ""}, {"z", 0.0, "0"}}, 0, ""};
  const std::string svg = to_svg({odd, odd});
  for (const double width : widths_of(svg)) EXPECT_EQ(width, 0.0);
  EXPECT_EQ(count_of(svg, "a &lt; b &amp; &quot;c&quot;"), 2u);
  EXPECT_EQ(count_of(svg, "refused: &lt;why&gt;"), 2u);
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(BarChart, AFileThatCannotBeIsRefusedBeforeTheWork) {
  EXPECT_TRUE(check_plot("").ok());
  EXPECT_TRUE(write_plot("", {}).ok());
  const auto refused = check_plot("/no/such/folder/a.svg");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::bad_input);
  const std::string path = ::testing::TempDir() + "bar_chart_test.svg";
  ASSERT_TRUE(check_plot(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path)) << "a check leaves nothing";
  ASSERT_TRUE(write_plot(path, {{"t", {{"a", 1, "1"}}, 0, ""}}).ok());
  const auto text = read_file(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, to_svg({{"t", {{"a", 1, "1"}}, 0, ""}}));
}

}  // namespace
}  // namespace quire::cli
