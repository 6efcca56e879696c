#include "base/key_values.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

std::string read(std::string_view list) {
  std::string seen;
  const Status status =
      each_key_value(list, "--x", "key=value", [&](std::string_view key, std::string_view value) {
        if (key == "bad") return Status(bad_input("no"));
        seen += std::string(key) + ":" + std::string(value) + ";";
        return Status();
      });
  return status.ok() ? seen : seen + status.error().message;
}

TEST(KeyValues, InOrderAndOnce) {
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("a=1,b=,c=x=y,"), "a:1;b:;c:x=y;");
  EXPECT_EQ(read("a=1,b"), "a:1;--x: 'b' is not key=value");
  EXPECT_EQ(read("a=1,,b=2"), "a:1;--x: '' is not key=value");
  EXPECT_EQ(read("a=1,b=2,a=1"), "a:1;b:2;--x: a is given twice: leave out one");
  EXPECT_EQ(read("a=1,bad=2,c=3"), "a:1;no");
}

}  // namespace
}  // namespace quire
