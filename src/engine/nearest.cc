#include "engine/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace quire::engine {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = ~std::size_t{0};
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance >= best_distance || 2 * distance > std::max(name.size(), candidate.size())) continue;
    best = candidate;
    best_distance = distance;
  }
  return std::string(best);
}

std::string name_hint(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string near = nearest_name(name, candidates);
  const std::string all = fmt::format("there are: {}", fmt::join(candidates, ", "));
  return near.empty() ? all : fmt::format("did you mean \"{}\"? {}", near, all);
}

}  // namespace quire::engine
