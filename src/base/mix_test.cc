#include "base/mix.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// The first numbers of the reference implementation for the state 1234567.
TEST(SplitMix, GivesTheNumbersOfTheReference) {
  std::uint64_t state = 1234567;
  for (const std::uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u})
    EXPECT_EQ(next_split_mix(state), expected);
}

}  // namespace
}  // namespace quire
