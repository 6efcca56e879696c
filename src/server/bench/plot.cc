#include "server/bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "base/text.h"

namespace quire::server::bench {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 620;
constexpr double kPanelWidth = 400;
constexpr double kPanelHeight = 200;
constexpr std::size_t kMostPoints = 400;  // of a curve

struct Panel {
  double x = 0.0;  // its plot area's upper left corner
  double y = 0.0;
  double most_x = 1.0;
  double most_y = 1.0;
  double at_x(double value) const { return x + kPanelWidth * value / most_x; }
  double at_y(double value) const { return y + kPanelHeight * (1 - value / most_y); }
};

double round_up(double value) {
  if (!(value > 0.0)) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 2.5, 5.0, 10.0})
    if (step * power >= value * 0.9999) return step * power;
  return 10.0 * power;
}

std::string seconds_text(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} s", seconds);
}

class Svg {
 public:
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui,sans-serif\" font-size=\"12\">\n"
      "<style>text{{fill:#667}} .h{{fill:#333;font-weight:600}} .g{{stroke:#99a;stroke-opacity:.35}} "
      ".a{{stroke:#2f6fd0;fill:none;stroke-width:2}} .b{{stroke:#e08a1e;fill:none;stroke-width:2}} "
      ".m{{stroke:#12967a;stroke-dasharray:4 3}} .l{{stroke:#b3261e;stroke-dasharray:4 3}} "
      "@media(prefers-color-scheme:dark){{text{{fill:#aab}} .h{{fill:#eee}}}}</style>\n",
      kWidth, kHeight);

  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Values>(values)...);
  }
  void words(double x, double y, const std::string& what, const char* anchor = "start",
             const char* kind = "") {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, kind,
        xml_escaped(what));
  }
  void line(double x1, double y1, double x2, double y2, const char* kind) {
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2, y2,
        kind);
  }
  void curve(const Panel& panel, const std::vector<std::pair<double, double>>& points, const char* kind) {
    if (points.empty()) return;
    add("<path class=\"{}\" d=\"", kind);
    for (std::size_t i = 0; i < points.size(); ++i)
      add("{}{:.1f},{:.1f}", i == 0 ? "M" : "L", panel.at_x(points[i].first), panel.at_y(points[i].second));
    add("\"/>\n");
  }
  void frame(const Panel& panel, const std::string& title) {
    words(panel.x, panel.y - 10, title, "start", "h");
    for (const double part : {0.0, 0.5, 1.0})
      line(panel.x, panel.at_y(panel.most_y * part), panel.x + kPanelWidth, panel.at_y(panel.most_y * part),
           "g");
  }
};

// `values` are sorted, and `spread` is of them.
void distribution(Svg& svg, Panel panel, const std::string& title, const std::vector<double>& values,
                  const Spread& spread, double limit) {
  // A few stragglers, or a limit far away, should not press the curve to the edge: what is beyond is not
  // drawn.
  constexpr double kBehindP99 = 1.2;
  constexpr double kFarLimit = 4.0;
  const double shown = std::min(spread.max, kBehindP99 * spread.p99);
  panel.most_x = round_up(limit <= kFarLimit * shown ? std::max(shown, limit) : shown);
  svg.frame(panel,
            fmt::format("{}: p50 {}, p99 {}", title, seconds_text(spread.p50), seconds_text(spread.p99)));
  std::vector<std::pair<double, double>> points;
  const std::size_t stride = std::max<std::size_t>(1, values.size() / kMostPoints);
  if (!values.empty()) points.emplace_back(values[0], 0.0);
  for (std::size_t i = 0; i < values.size() && values[i] <= panel.most_x; i += stride)
    points.emplace_back(values[i], static_cast<double>(i + 1) / static_cast<double>(values.size()));
  if (!values.empty() && values.back() <= panel.most_x) points.emplace_back(values.back(), 1.0);
  svg.curve(panel, points, "a");
  for (const auto& [value, kind] : {std::pair(spread.p99, "m"), std::pair(limit, "l")})
    if (value > 0.0 && value <= panel.most_x)
      svg.line(panel.at_x(value), panel.y, panel.at_x(value), panel.y + kPanelHeight, kind);
  for (const double part : {0.0, 0.5, 1.0}) {
    svg.words(panel.x - 6, panel.at_y(part) + 4, fmt::format("{:.0f} %", 100 * part), "end");
    svg.words(panel.at_x(panel.most_x * part), panel.y + kPanelHeight + 16, seconds_text(panel.most_x * part),
              part == 0.0   ? "start"
              : part == 1.0 ? "end"
                            : "middle");
  }
}

// Events with text a second, and requests under way, over the time of the load.
void over_time(Svg& svg, Panel panel, std::span<const Outcome> outcomes) {
  double end = 0.0;
  for (const Outcome& outcome : outcomes) end = std::max(end, outcome.end_s);
  constexpr std::size_t kBins = 60;
  const double bin = std::max(end, 1e-6) / kBins;
  std::vector<double> texts(kBins, 0.0);
  std::vector<double> running(kBins, 0.0);
  const auto index = [&](double time) {
    return std::min(kBins - 1, static_cast<std::size_t>(std::max(0.0, time) / bin));
  };
  for (const Outcome& outcome : outcomes) {
    if (outcome.begin_s < 0.0) continue;
    for (std::size_t b = index(outcome.begin_s); b <= index(outcome.end_s); ++b) {
      const double from = std::max(outcome.begin_s, static_cast<double>(b) * bin);
      const double to = std::min(outcome.end_s, static_cast<double>(b + 1) * bin);
      running[b] += std::max(0.0, to - from) / bin;
    }
    double time = outcome.first_s;
    if (outcome.texts > 0) texts[index(time)] += 1.0 / bin;
    for (const float gap : outcome.gaps_s) texts[index(time += static_cast<double>(gap))] += 1.0 / bin;
  }
  panel.most_x = std::max(end, 1e-6);
  const double most_texts = round_up(*std::max_element(texts.begin(), texts.end()));
  const double most_running = round_up(*std::max_element(running.begin(), running.end()));
  svg.frame(panel, "Over time");
  std::vector<std::pair<double, double>> a;
  std::vector<std::pair<double, double>> b;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double middle = (static_cast<double>(i) + 0.5) * bin;
    a.emplace_back(middle, texts[i] / most_texts);
    b.emplace_back(middle, running[i] / most_running);
  }
  svg.curve(panel, a, "a");
  svg.curve(panel, b, "b");
  svg.words(panel.x, panel.y + kPanelHeight + 34,
            fmt::format("blue: pieces of text a second, to {:.4g}; orange: requests "
                        "under way, to {:.4g}",
                        most_texts, most_running));
  svg.words(panel.x, panel.y + kPanelHeight + 16, "0 s");
  svg.words(panel.x + kPanelWidth, panel.y + kPanelHeight + 16, seconds_text(end), "end");
}

}  // namespace

std::string plot_svg(std::span<const Outcome> outcomes, const Report& report, const Limits& limits,
                     const std::string& title) {
  Svg svg;
  svg.words(20, 26, title, "start", "h");
  svg.words(
      20, 44,
      fmt::format("{} of {} requests completed in {:.1f} s: {:.1f} output tokens a second, {:.2f} "
                  "requests a second",
                  report.completed, report.requests, report.seconds, report.tokens_s, report.requests_s));
  distribution(svg, {.x = 60, .y = 92}, "First token", report.times.ttft, report.ttft_s, limits.ttft_p99_s);
  distribution(svg, {.x = 530, .y = 92}, "Between tokens", report.times.itl, report.itl_s, limits.itl_p99_s);
  distribution(svg, {.x = 60, .y = 372}, "Whole request", report.times.e2e, report.e2e_s, 0.0);
  over_time(svg, {.x = 530, .y = 372}, outcomes);
  svg.words(20, kHeight - 8, limits.any() ? "green: p99; red: its limit" : "green: p99");
  svg.text += "</svg>\n";
  return std::move(svg.text);
}

}  // namespace quire::server::bench
