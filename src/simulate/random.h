// Random draws by our own formulas: the standard library's engines are the same everywhere, its distributions
// are not. (Logarithms come from the C library; a trace is the same wherever that gives the same bits.)
#pragma once

#include <cmath>
#include <cstdint>

#include "simulate/trace.h"

namespace quire::simulate {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed, 0x71)) {}

  std::uint64_t bits() { return mix(state_, counter_++); }
  // In [0, n), n >= 1.
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(bits() % static_cast<std::uint64_t>(n));
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double probability) { return unit() < probability; }
  // Between 1 and 5 times the mean, many below it, some well above.
  std::int32_t length(std::int32_t mean) {
    const double drawn = exponential(static_cast<double>(mean) * 0.75) + 0.25 * mean;
    return 1 + static_cast<std::int32_t>(std::fmin(drawn, 5.0 * mean));
  }
  double exponential(double mean) { return -mean * std::log1p(-unit()); }

 private:
  std::uint64_t state_ = 0;
  std::uint64_t counter_ = 0;
};

}  // namespace quire::simulate
