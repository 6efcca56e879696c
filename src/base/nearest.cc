#include "base/nearest.h"

#include <algorithm>

namespace quire {

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<int> before(width), last(width), row(width);
  for (std::size_t j = 0; j < width; ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < width; ++j) {
      const int change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::vector<std::string_view> nearest(std::string_view name, std::span<const std::string_view> candidates) {
  std::vector<std::pair<int, std::string_view>> ranked;
  for (std::string_view candidate : candidates) {
    // A distance is no less than the lengths': names from files may be of any length.
    const std::size_t longest = std::max(name.size(), candidate.size());
    if (2 * std::min(name.size(), candidate.size()) < longest) continue;
    const int distance = edit_distance(name, candidate);
    if (2 * static_cast<std::size_t>(distance) <= longest) ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string_view> best;
  for (const auto& [distance, candidate] : ranked) {
    if (best.size() < 2) best.push_back(candidate);
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::vector<std::string_view> close = nearest(name, candidates);
  const bool found = !close.empty();
  std::string text = found ? " (did you mean " : " (legal: ";
  const std::span<const std::string_view> list =
      found ? std::span<const std::string_view>(close) : candidates;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) text += found ? " or " : ", ";
    text += list[i];
  }
  return text + (found ? "?)" : ")");
}

}  // namespace quire
