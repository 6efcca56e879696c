// A small generator whose numbers are the same on every machine and library: a seed names a case for good.
#pragma once

#include <cstdint>

#include "base/mix.h"

namespace quire::conformance {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return next_split_mix(state_); }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }  // n >= 1
  int between(int low, int high) { return low + below(high - low + 1); }                 // inclusive
  bool one_in(int n) { return below(n) == 0; }
  // Near to normal(0, 1): the sum of four uniforms, so never beyond 3.5.
  float normal() {
    const std::uint64_t z = next();
    const auto sum =
        static_cast<float>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48));
    return (sum / 65536.0f - 2.0f) * 1.7320508f;
  }

 private:
  std::uint64_t state_;
};

}  // namespace quire::conformance
