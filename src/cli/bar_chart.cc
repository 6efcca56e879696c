#include "cli/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cli/command.h"

namespace quire::cli {

namespace {

constexpr int kRow = 24, kTitle = 34, kBar = 16, kBars = 420, kText = 300, kEdge = 12;
constexpr double kLetter = 7.2;  // pixels of the widest digits of a 12-pixel font

bool has_bar(double value) { return std::isfinite(value) && value > 0; }

void add_text(std::string& svg, double x, double y, std::string_view more, std::string_view text) {
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more, xml_escaped(text));
}

void add_chart(std::string& svg, const BarChart& chart, int top, int labels) {
  double most = chart.limit;
  for (const Bar& bar : chart.bars)
    if (has_bar(bar.value)) most = std::max(most, bar.value);
  const auto width_of = [&](double value) { return most > 0 ? value / most * kBars : 0.0; };
  const int left = kEdge + labels;
  add_text(svg, kEdge, top + 20, " font-weight=\"bold\"", chart.title);
  int y = top + kTitle;
  for (const Bar& bar : chart.bars) {
    const double width = has_bar(bar.value) ? width_of(bar.value) : 0.0;
    add_text(svg, left - 6, y + 13, " text-anchor=\"end\"", bar.label);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"#4878a8\"/>\n", left, y,
                       width, kBar);
    add_text(svg, left + width + 6, y + 13, "", bar.text);
    y += kRow;
  }
  if (!has_bar(chart.limit)) return;
  const double x = left + width_of(chart.limit);
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#b03030\" stroke-dasharray=\"4 "
      "3\"/>\n",
      x, top + kTitle - 4, y);
  add_text(svg, x, top + kTitle - 8, " text-anchor=\"middle\" fill=\"#b03030\"", chart.limit_text);
}

}  // namespace

std::string to_svg(const std::vector<BarChart>& charts) {
  std::size_t longest = 0;
  int height = kEdge;
  for (const BarChart& chart : charts) {
    for (const Bar& bar : chart.bars) longest = std::max(longest, bar.label.size());
    height += kTitle + kRow * static_cast<int>(chart.bars.size()) + kEdge;
  }
  const int labels = static_cast<int>(kLetter * static_cast<double>(longest)) + 12;
  const int width = 2 * kEdge + labels + kBars + kText;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"monospace\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  int top = kEdge / 2;
  for (const BarChart& chart : charts) {
    add_chart(svg, chart, top, labels);
    top += kTitle + kRow * static_cast<int>(chart.bars.size()) + kEdge;
  }
  return svg + "</svg>\n";
}

Status check_plot(const std::string& path) { return check_writable("--plot", path); }

Status write_plot(const std::string& path, const std::vector<BarChart>& charts) {
  return path.empty() ? Status() : write_file(path, to_svg(charts));
}

}  // namespace quire::cli
