#include "engine/ledger.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

TEST(Ledger, SumsAndRefuses) {
  Ledger ledger;
  ledger.add_mapped("weights in the file", 1000);
  ledger.add("logits", 300);
  ledger.add("nothing", 0);
  EXPECT_EQ(ledger.lines().size(), 2u);
  EXPECT_EQ(ledger.private_bytes(), 300);
  EXPECT_EQ(ledger.total_bytes(), 1300);
  EXPECT_TRUE(ledger.check(300).ok());
  const Status refused = ledger.check(299);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::no_resources);
  EXPECT_NE(refused.error().message.find("logits"), std::string::npos);
  EXPECT_NE(refused.error().message.find("299 bytes are available"), std::string::npos)
      << refused.error().message;
}

TEST(Ledger, HostMemoryIsListedAndAsksNothingOfTheDevice) {
  Ledger ledger;
  ledger.add("logits", 300);
  ledger.add_host("pinned step buffers", 5000);
  EXPECT_EQ(ledger.private_bytes(), 300);
  EXPECT_TRUE(ledger.check(300).ok());
  EXPECT_NE(to_string(ledger.lines()).find("pinned step buffers (host memory)"), std::string::npos)
      << to_string(ledger.lines());
}

TEST(Ledger, BytesInWords) {
  EXPECT_EQ(bytes_to_string(640), "640 bytes");
  EXPECT_EQ(bytes_to_string(12 << 20), "12 MiB");
  EXPECT_EQ(bytes_to_string(std::int64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace quire::engine
