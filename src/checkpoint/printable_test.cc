#include "checkpoint/printable.h"

#include <gtest/gtest.h>

namespace quire::checkpoint {
namespace {

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(printable("h\xc3\xa9"), "h\xc3\xa9");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(80, 'x') + "...");
}

TEST(Printable, PlainNamesAreShortUtf8) {
  EXPECT_TRUE(is_plain_name("model.layers.0", 20));
  EXPECT_TRUE(is_plain_name("\xf0\x9f\x98\x80", 4));
  EXPECT_FALSE(is_plain_name("", 20));
  EXPECT_FALSE(is_plain_name("abc", 2));
  EXPECT_FALSE(is_plain_name("a\tb", 20));
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    EXPECT_FALSE(is_plain_name(bad, 20)) << bad;
  }
}

}  // namespace
}  // namespace quire::checkpoint
