// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): numbers that
// are the same on every machine and library.
#pragma once

#include <cstdint>

namespace quire {

// What its counter is moved on by: the golden ratio's digits.
inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

// Its finaliser: every bit of x moves every bit of the result.
constexpr std::uint64_t split_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The next number of the generator that `state` is.
constexpr std::uint64_t next_split_mix(std::uint64_t& state) { return split_mix(state += kSplitMixStep); }

}  // namespace quire
