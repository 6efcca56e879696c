#include "cli/settings.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

TEST(IntoBytes, BytesAreWholeAndUnitsMayHaveAFraction) {
  const auto read = [](const char* text) {
    std::int64_t bytes = -1;
    const Status status = into_bytes(&bytes)(text);
    EXPECT_EQ(status.ok(), bytes != -1) << text;
    return bytes;
  };
  EXPECT_EQ(read("200000"), 200000);
  EXPECT_EQ(read("2e5"), 200000);
  EXPECT_EQ(read("1.5K"), 1536);
  EXPECT_EQ(read("1.5G"), 3LL << 29);
  EXPECT_EQ(read("0.5GiB"), 1LL << 29);
  EXPECT_EQ(read("0.9G"), 966367641);  // nobody means its 0.6 bytes
  EXPECT_EQ(read("auto"), 0);
  for (const char* none :
       {"200000.9", "1.5", "0.5", "9000.7B", "0", "-1", "G", "1X", "nan", "inf", "1e300", " 1"})
    EXPECT_EQ(read(none), -1) << none;
}

}  // namespace
}  // namespace quire::cli
