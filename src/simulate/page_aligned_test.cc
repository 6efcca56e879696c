#include "simulate/page_aligned.h"

#include <gtest/gtest.h>

#include "simulate/trace.h"

namespace quire::simulate {
namespace {

// Stamps of a sequence of tokens, by content: the same content gives the same stamps up to where it ends.
std::vector<std::uint64_t> stamps_of(std::initializer_list<Segment> segments) {
  std::vector<std::uint64_t> stamps;
  std::uint64_t last = 0;
  for (const Segment& segment : segments)
    for (std::int32_t i = 0; i < segment.tokens; ++i)
      stamps.push_back(last = mix(last, mix(segment.content, static_cast<std::uint64_t>(i))));
  return stamps;
}

TEST(PageAligned, OnlyWholePagesHitAndTheLastTokenIsComputed) {
  PageAligned cache(16, 100);
  const auto first = stamps_of({{1, 40}});
  EXPECT_EQ(cache.admit(SequenceId{1}, first), 0);
  cache.publish(SequenceId{1}, first);
  EXPECT_EQ(cache.admit(SequenceId{2}, stamps_of({{1, 40}, {2, 5}})), 32);
  EXPECT_EQ(cache.admit(SequenceId{3}, stamps_of({{1, 32}})), 16);
  EXPECT_EQ(cache.admit(SequenceId{4}, stamps_of({{1, 31}, {2, 30}})), 16);
  EXPECT_EQ(cache.admit(SequenceId{5}, stamps_of({{2, 40}})), 0);
}

TEST(PageAligned, AnswersAreFoundWhenTheirRequestHasEnded) {
  PageAligned cache(16, 100);
  const auto all = stamps_of({{1, 30}, {2, 40}});
  cache.admit(SequenceId{1}, std::span(all).first(30));
  cache.publish(SequenceId{1}, std::span(all).first(30));
  cache.grow(SequenceId{1}, 70);
  EXPECT_EQ(cache.admit(SequenceId{2}, all), 16);
  cache.release(SequenceId{1}, all);
  EXPECT_EQ(cache.admit(SequenceId{3}, all), 64);
}

TEST(PageAligned, TheLeastRecentlyUsedGoFirstEndsBeforeBeginningsAndUsedPagesStay) {
  PageAligned cache(16, 8);
  const auto serve = [&](std::uint32_t id, std::uint64_t content, bool end) {
    const auto stamps = stamps_of({{content, 48}});
    const std::int32_t hit = cache.admit(SequenceId{id}, stamps);
    cache.publish(SequenceId{id}, stamps);
    if (end) cache.release(SequenceId{id}, {});
    return hit;
  };
  serve(1, 1, true);                  // 3 pages
  serve(2, 2, true);                  // 6 pages
  EXPECT_EQ(serve(3, 1, false), 32);  // in use now: of 8 pages 3 and one of its own
  serve(4, 3, true);                  // 4 more are needed: content 2 goes
  EXPECT_EQ(serve(5, 2, true), 0);
  EXPECT_EQ(serve(6, 1, true), 32);
  // Content 2 was used last before that; one page too many takes the end of content 2, not its beginning.
  cache.release(SequenceId{3}, {});
  PageAligned small(16, 4);
  const auto long_one = stamps_of({{7, 64}});
  small.admit(SequenceId{1}, long_one);
  small.publish(SequenceId{1}, long_one);
  small.release(SequenceId{1}, {});
  EXPECT_EQ(small.admit(SequenceId{2}, stamps_of({{8, 10}})), 0);
  small.release(SequenceId{2}, {});
  EXPECT_EQ(small.admit(SequenceId{3}, long_one), 48);
}

}  // namespace
}  // namespace quire::simulate
