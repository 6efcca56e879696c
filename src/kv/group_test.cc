#include "kv/group.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::kv {
namespace {

TEST(GroupRule, VisibleBeginFollowsTheMasks) {
  EXPECT_EQ(visible_begin({Keep::all, 0, 4}, 100), 0);
  EXPECT_EQ(visible_begin({Keep::window, 8, 4}, 3), 0);
  EXPECT_EQ(visible_begin({Keep::window, 8, 4}, 8), 1);
  EXPECT_EQ(visible_begin({Keep::chunk, 8, 4}, 15), 8);
  EXPECT_EQ(visible_begin({Keep::chunk, 8, 4}, 16), 16);
}

// Against the words of the rule: page i goes when its last key is below begin of the row at p = committed.
TEST(GroupRule, ReleasesExactlyTheDeadPages) {
  for (const int page : {1, 2, 7, 16, 64, 256}) {
    for (const int width : {1, 3, 16, 65}) {
      for (const Keep keep : {Keep::all, Keep::window, Keep::chunk}) {
        const GroupRule rule{keep, width, page};
        for (int committed = 0; committed < 600; ++committed) {
          std::int64_t first = 0;
          while ((first + 1) * page - 1 < visible_begin(rule, committed)) ++first;
          ASSERT_EQ(first_live_entry(rule, Committed{committed}), first);
        }
      }
    }
  }
}

TEST(GroupRule, LivePagesNeverExceedTheirBound) {
  for (const int page : {1, 2, 7, 16, 64}) {
    for (const int width : {1, 3, 16, 65}) {
      for (const int step : {1, 5, 64}) {
        for (const Keep keep : {Keep::window, Keep::chunk}) {
          const GroupRule rule{keep, width, page};
          const std::int64_t bound = most_live_pages(rule, 500, step);
          EXPECT_LE(bound, (width + step + page - 1) / page + 1);
          for (int start = 0; start < 500; ++start) {
            for (const int added : {1, (step + 1) / 2, step}) {
              const int end = std::min(500, start + added);
              ASSERT_LE(pages_for(rule, end) - first_live_entry(rule, Committed{start}), bound);
            }
          }
        }
      }
    }
  }
}

TEST(GroupRule, PagesRoundUp) {
  EXPECT_EQ(pages_for({Keep::all, 0, 16}, 0), 0);
  EXPECT_EQ(pages_for({Keep::all, 0, 16}, 16), 1);
  EXPECT_EQ(pages_for({Keep::all, 0, 16}, 17), 2);
}

}  // namespace
}  // namespace quire::kv
