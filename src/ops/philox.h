// Philox4x32-10 (Salmon et al., 2011): 128 random bits from a counter and a key, with no state. One text for
// every platform, so that a seed draws the same everywhere.
#pragma once

#include <array>
#include <cstdint>

namespace quire::ops {

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The draw of one token: uniform in [0, 1), 53 bits.
constexpr double uniform_draw(std::uint64_t seed, std::uint64_t sequence, std::uint64_t token) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto bits =
      philox4x32({low(token), high(token), low(sequence), high(sequence)}, {low(seed), high(seed)});
  const std::uint64_t word = (std::uint64_t{bits[0]} << 32 | bits[1]) >> 11;
  return static_cast<double>(word) * 0x1.0p-53;
}

}  // namespace quire::ops
