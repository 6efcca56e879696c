// Quantiles of measurements.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace quire {

// Between neighbours the value is interpolated; 0 for none. `q` in [0, 1].
inline double quantile(std::span<const double> sorted, double q) {
  if (sorted.empty()) return 0.0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

}  // namespace quire
