// Quantiles of many values in little memory: counts in bins that grow by 2 %, so a quantile is exact to 1 %.
// Internal to simulate/.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace quire::simulate {

class Histogram {
 public:
  void add(double seconds) {
    ++count_;
    const double bin = std::log(std::max(seconds, kLeast) / kLeast) / std::log(kGrowth);
    ++bins_[std::min(static_cast<std::size_t>(bin), bins_.size() - 1)];
  }
  // The value that a share q of all values does not exceed; 0 without values.
  double quantile(double q) const {
    const auto rank = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count_)));
    std::int64_t seen = 0;
    for (std::size_t bin = 0; bin < bins_.size() && count_ > 0; ++bin) {
      seen += bins_[bin];
      if (seen >= std::max<std::int64_t>(1, rank))
        return bin == 0 ? 0.0 : kLeast * std::pow(kGrowth, static_cast<double>(bin) + 0.5);
    }
    return 0.0;
  }

 private:
  static constexpr double kLeast = 1e-6;
  static constexpr double kGrowth = 1.02;
  std::array<std::int64_t, 1600> bins_{};  // up to 6e7 s
  std::int64_t count_ = 0;
};

}  // namespace quire::simulate
