#include "base/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/token_id.h"

namespace quire {
namespace {

TEST(Text, LowersAsciiOnly) {
  EXPECT_EQ(to_lower("Content-LENGTH \xc3\x84 Z9"), "content-length \xc3\x84 z9");
}

TEST(Text, KnowsLettersAndDigits) {
  for (const char c : std::string_view("azAZ09")) EXPECT_TRUE(is_letter_or_digit(c)) << c;
  for (const char c : std::string_view("`{@[/:_ \xe9")) EXPECT_FALSE(is_letter_or_digit(c)) << c;
}

TEST(Text, ParsesAllOfATextOrNothing) {
  std::int32_t number = 7;
  EXPECT_TRUE(parse_number("-12", &number));
  EXPECT_EQ(number, -12);
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "2147483648", "x"}) {
    EXPECT_FALSE(parse_number(text, &number)) << text;
    EXPECT_EQ(number, -12) << text;
  }
  std::uint64_t hex = 0;
  EXPECT_TRUE(parse_number("fF", &hex, 16));
  EXPECT_EQ(hex, 255u);
  EXPECT_FALSE(parse_number("-1", &hex));
  double real = 0.0;
  EXPECT_TRUE(parse_number("2.5e-1", &real));
  EXPECT_EQ(real, 0.25);
  EXPECT_FALSE(parse_number("1e999", &real));
}

TEST(Text, ATokenIdIsWrittenInOneWay) {
  EXPECT_EQ(parse_token_id("0"), 0);
  EXPECT_EQ(parse_token_id("2147483647"), INT32_MAX);
  for (const char* text : {"", "07", "00", "-0", "-1", "+1", " 1", "1 ", "1.0", "2147483648", "x"})
    EXPECT_EQ(parse_token_id(text), std::nullopt) << text;
}

TEST(Text, ListsWithCommas) {
  struct Row {
    std::string name;
  };
  EXPECT_EQ(comma_list(std::vector<std::string>{}), "");
  EXPECT_EQ(comma_list(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(comma_list(std::vector<Row>{{"a"}, {"b"}}, &Row::name), "a, b");
}

TEST(Text, EscapesForSvg) { EXPECT_EQ(xml_escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;"); }

}  // namespace
}  // namespace quire
