// Bar charts as SVG: what `quire bench ... --plot FILE` writes. Horizontal bars, a label before each and its
// value behind, one chart below the other; no script, no font and no style from outside.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;  // behind the bar: the value with its unit
};

struct BarChart {
  std::string title;
  std::vector<Bar> bars;
  double limit = 0;  // a line across the bars: a ceiling, say; 0: none
  std::string limit_text;
};

// One document. Values below 0 and those that are no numbers have no bar, but their text.
std::string to_svg(const std::vector<BarChart>& charts);

// `--plot FILE` before the work: nothing when the path is empty, bad_input when no file can be written there.
Status check_plot(const std::string& path);
// And after it. An empty path writes nothing.
Status write_plot(const std::string& path, const std::vector<BarChart>& charts);

}  // namespace quire::cli
