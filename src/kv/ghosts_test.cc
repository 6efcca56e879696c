// Evicted pages are found by any beginning of theirs, as a list searched from end to end finds them.
#include "kv/ghosts.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "kv/prefix_tree.h"

namespace quire::kv {
namespace {

struct Evicted {
  std::uint64_t before = 0;
  std::vector<std::int32_t> tokens;
  std::uint64_t at = 0;
};

TEST(Ghosts, AreFoundByAnyBeginningOfTheirs) {
  Ghosts ghosts(8);
  EXPECT_EQ(ghosts.longest(1, std::vector<std::int32_t>{1, 2}).tokens, 0);
  ghosts.add(1, std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8}, 10, Pressure::growth);
  ghosts.add(1, std::vector<std::int32_t>{1, 2, 9}, 11, Pressure::admission);
  const auto found = ghosts.longest(1, std::vector<std::int32_t>{1, 2, 3, 4});
  EXPECT_EQ(found.tokens, 4);
  EXPECT_EQ(found.at, 10u);
  EXPECT_EQ(found.pressure, Pressure::growth);
  EXPECT_EQ(ghosts.longest(1, std::vector<std::int32_t>{1, 2, 9, 9}).at, 11u);
  EXPECT_EQ(ghosts.longest(1, std::vector<std::int32_t>{2}).tokens, 0);
  EXPECT_EQ(ghosts.longest(2, std::vector<std::int32_t>{1, 2}).tokens, 0);
  ghosts.add(1, std::vector<std::int32_t>{1, 2, 9}, 12, Pressure::clearing);
  EXPECT_EQ(ghosts.longest(1, std::vector<std::int32_t>{1, 2, 9}).at, 12u);
}

TEST(Ghosts, AgreeWithAPlainList) {
  std::mt19937 random(11);
  Ghosts ghosts(6);
  std::deque<Evicted> list;  // the oldest first
  for (std::uint64_t at = 1; at < 9000; ++at) {
    Evicted page{random() % 40, {}, at};
    for (std::size_t n = 1 + random() % 6; n > 0; --n)
      page.tokens.push_back(static_cast<std::int32_t>(random() % 5));
    ghosts.add(page.before, page.tokens, at, Pressure::growth);
    const auto same = std::find_if(list.begin(), list.end(), [&](const Evicted& other) {
      return other.before == page.before && other.tokens == page.tokens;
    });
    if (same != list.end()) {
      same->at = at;
    } else {
      list.push_back(page);
      if (list.size() > kGhosts) list.pop_front();
    }
    if (at % 10 != 0) continue;
    std::vector<std::int32_t> question;
    for (std::size_t n = random() % 8; n > 0; --n)
      question.push_back(static_cast<std::int32_t>(random() % 6));
    const std::uint64_t before = random() % 41;
    std::int32_t most = 0;
    for (const Evicted& other : list)
      if (other.before == before) most = std::max(most, common_prefix(other.tokens, question));
    const Ghosts::Found found = ghosts.longest(before, question);
    ASSERT_EQ(found.tokens, most) << at;
    if (most == 0) continue;
    EXPECT_TRUE(std::any_of(list.begin(), list.end(), [&](const Evicted& other) {
      return other.before == before && other.at == found.at && common_prefix(other.tokens, question) == most;
    }));
  }
  EXPECT_EQ(list.size(), kGhosts);
}

}  // namespace
}  // namespace quire::kv
