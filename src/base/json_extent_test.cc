#include "base/json_extent.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(JsonExtent, CountsOutsideOfStrings) {
  EXPECT_EQ(json_extent("3").depth, 0u);
  EXPECT_EQ(json_extent(R"({"a":[1,{"b":[]}],"c":"[[[["})").depth, 4u);
  EXPECT_EQ(json_extent(R"(["\"[[",[]])").depth, 2u);
}

TEST(JsonExtent, IsNeverLessThanWhatIsThere) {
  EXPECT_EQ(json_extent("3").values, 1u);
  EXPECT_GE(json_extent(R"({"a":[1,2,3],"b":{}})").values, 6u);
  EXPECT_EQ(json_extent("]]]][[[").depth, 3u);  // what is closed and was not open gives nothing back
}

TEST(JsonExtent, FindsTheObjectWithMostMembers) {
  EXPECT_EQ(json_extent("[1,2,3]").members, 0u);
  EXPECT_EQ(json_extent(R"({"a":{"x:y":1,"b":2,"c":3},"d":{"e":4}})").members, 3u);
}

}  // namespace
}  // namespace quire
