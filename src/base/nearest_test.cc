#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("page", "page"), 0);
  EXPECT_EQ(edit_distance("pgae", "page"), 1);  // a swap is one edit
  EXPECT_EQ(edit_distance("cuda", "cpu"), 3);
}

TEST(Nearest, NamesTheClosestOrListsAll) {
  const std::array<std::string_view, 3> names{"--page-size", "--threads", "--dtype"};
  EXPECT_EQ(did_you_mean("--pagesize", names), " (did you mean --page-size?)");
  EXPECT_EQ(did_you_mean("zzz", names), " (legal: --page-size, --threads, --dtype)");
}

}  // namespace
}  // namespace quire
