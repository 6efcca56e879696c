#include "cli/command.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

TEST(ParseIds, BlanksACommaOrBothStandBetweenTwo) {
  using Ids = std::vector<std::int32_t>;
  for (const char* text : {"1,2,30", "1 2 30", "1, 2 ,30\n", "\n1\n2\r\n30\n", " 1,\n2,\n30 "}) {
    const auto ids = parse_ids(text);
    ASSERT_TRUE(ids.ok()) << text << ids.error().message;
    EXPECT_EQ(*ids, (Ids{1, 2, 30})) << text;
  }
  EXPECT_EQ(*parse_ids("2147483647"), Ids{2147483647});
}

TEST(ParseIds, WhatIsNoneIsNamedWhole) {
  const auto refused = [](const char* text) {
    const auto ids = parse_ids(text);
    return ids.ok() ? "accepted" : ids.error().message;
  };
  const auto named = [&](const char* text, const std::string& word) {
    EXPECT_EQ(refused(text),
              "token ids: '" + word + "' is not a token id of 0 to 2147483647; give them as 1,2,3");
  };
  named("1,5k,2", "5k");
  named("1.5", "1.5");
  named("1, k", "k");
  named("-1", "-1");
  named("99999999999999999999", "99999999999999999999");
  named(std::string(100, '9').c_str(), std::string(80, '9') + "...");
  EXPECT_EQ(refused(""), "token ids: none given; give them as 1,2,3");
  EXPECT_EQ(refused(" \n"), "token ids: none given; give them as 1,2,3");
  for (const char* text : {",1", "1,,2", "1, ,2", ","})
    EXPECT_EQ(refused(text), "token ids: a comma without a token id before it; give them as 1,2,3") << text;
  EXPECT_EQ(refused("1,\n"), "token ids: a comma without a token id behind it; give them as 1,2,3");
}

}  // namespace
}  // namespace quire::cli
