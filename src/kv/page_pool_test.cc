#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace quire::kv {
namespace {

constexpr GroupId kFull{0};
constexpr GroupId kWindow{1};

std::unique_ptr<PagePool> make_pool(const std::vector<std::int64_t>& strides, std::int64_t slabs,
                                    bool record_freed = false, std::int64_t arena = 0) {
  PoolConfig config;
  config.plan = *plan_slabs(strides, arena);
  config.slabs = slabs;
  for (std::size_t g = 0; g < strides.size(); ++g) config.groups.push_back({g == 0 ? "full" : "window", {}});
  config.record_freed = record_freed;
  return PagePool::create(std::move(config)).value();
}

PageCounts counts(std::int64_t full, std::int64_t window = 0) {
  PageCounts result;
  result.of = {full, window};
  return result;
}

Owner request(std::uint32_t id) { return Owner{OwnerKind::request, id}; }

TEST(PagePool, HandsOutEveryPageButZeroOnce) {
  const auto pool = make_pool({64}, 4, false, 64 * 64 * 40);
  const std::int64_t pages = pool->plan().most_pages(kFull, 4);
  Reservation all = pool->reserve(request(1), counts(pages));
  ASSERT_TRUE(all.held());
  EXPECT_FALSE(pool->can_promise(counts(1)));
  std::set<std::uint32_t> seen;
  PageId last = kPaddingPage;
  for (std::int64_t i = 0; i < pages; ++i) {
    last = all.take(kFull, last);
    EXPECT_NE(last, kPaddingPage);
    EXPECT_TRUE(seen.insert(last.value).second);
  }
  EXPECT_TRUE(pool->check_all().empty());
  for (const std::uint32_t page : seen) pool->give(kFull, PageId{page}, request(1));
  EXPECT_TRUE(pool->idle());
  EXPECT_TRUE(pool->check_all().empty());
}

TEST(PagePool, OneSequenceGetsOneRunAcrossSlabs) {
  const auto pool = make_pool({64}, 8, false, 64 * 64 * 16);
  Reservation reservation = pool->reserve(request(1), counts(50));
  PageId last = reservation.take(kFull, kPaddingPage);
  int breaks = 0;
  for (int i = 1; i < 50; ++i) {
    const PageId next = reservation.take(kFull, last);
    breaks += next.value != last.value + 1;
    last = next;
  }
  EXPECT_LE(breaks, 2);  // the rest of slab 0 beside page 0, then runs over whole slabs
}

TEST(PagePool, TwoGrowingSequencesKeepTheirOwnRuns) {
  const auto pool = make_pool({64}, 1, false, 64 * 64 * 64 * 64);
  Reservation reservation = pool->reserve(request(1), counts(16));
  PageId a = reservation.take(kFull, kPaddingPage);
  PageId b = reservation.take(kFull, kPaddingPage);
  for (int i = 0; i < 7; ++i) {
    const PageId next_a = reservation.take(kFull, a);
    const PageId next_b = reservation.take(kFull, b);
    if (i > 0) {
      EXPECT_EQ(next_a.value, a.value + 1);
    }
    a = next_a;
    b = next_b;
  }
}

TEST(PagePool, ReserveIsAllGroupsOrNothing) {
  const auto pool = make_pool({64, 128}, 3);
  const std::int64_t window = pool->plan().most_pages(kWindow, 3);
  EXPECT_FALSE(pool->reserve(request(1), counts(1, window)).held());
  EXPECT_EQ(pool->promised(kFull), 0);
  Reservation first = pool->reserve(request(1), counts(1));
  EXPECT_FALSE(pool->can_promise(counts(0, window)));
  EXPECT_TRUE(pool->fits_empty(counts(0, window)));
  first.release();
  EXPECT_TRUE(pool->can_promise(counts(0, window)));
}

TEST(PagePool, RollbackReturnsWhatWasNotTaken) {
  const auto pool = make_pool({64}, 4, false, 64 * 64 * 64);
  PageId page;
  {
    Reservation reservation = pool->reserve(request(3), counts(5));
    page = reservation.take(kFull, kPaddingPage);
    EXPECT_EQ(pool->promised(kFull), 4);
    Reservation moved = std::move(reservation);
    EXPECT_FALSE(reservation.held());
    moved.shrink_to(counts(2));
    EXPECT_EQ(moved.left(kFull), 2);
    EXPECT_TRUE(moved.grow(counts(1)));
    EXPECT_EQ(pool->promised(kFull), 3);
  }
  EXPECT_EQ(pool->promised(kFull), 0);
  EXPECT_EQ(pool->in_use(kFull), 1);
  pool->give(kFull, page, request(3));
  EXPECT_TRUE(pool->idle());
}

TEST(PagePool, SlabsMoveBetweenGroups) {
  const auto pool = make_pool({64, 128}, 10, false, 64 * 128 * 10);
  const auto fill_and_drain = [&](GroupId group) {
    const std::int64_t pages = pool->plan().most_pages(group, 10);
    PageCounts wanted;
    wanted[group] = pages;
    Reservation reservation = pool->reserve(request(1), wanted);
    ASSERT_TRUE(reservation.held());
    std::vector<PageId> taken;
    for (std::int64_t i = 0; i < pages; ++i) taken.push_back(reservation.take(group, kPaddingPage));
    EXPECT_EQ(pool->free_slabs(), 0);
    EXPECT_TRUE(pool->check_all().empty());
    for (const PageId page : taken) pool->give(group, page, request(1));
    EXPECT_EQ(pool->free_slabs(), 9);
  };
  fill_and_drain(kFull);
  fill_and_drain(kWindow);
  fill_and_drain(kFull);
}

TEST(PagePool, PageZeroOfEveryGroupOverlapsNothingHandedOut) {
  for (const std::vector<std::int64_t>& strides :
       {std::vector<std::int64_t>{64, 128}, {128, 64}, {4 * 64, 22 * 64, 3 * 64}, {64 * 101, 64 * 97}}) {
    const auto pool = make_pool(strides, 40);
    const std::int64_t reach =
        *std::max_element(pool->plan().page_strides.begin(), pool->plan().page_strides.end());
    for (std::size_t g = 0; g < strides.size(); ++g) {
      const GroupId group{static_cast<std::uint32_t>(g)};
      PageCounts wanted;
      wanted[group] = pool->plan().most_pages(group, 40);
      Reservation reservation = pool->reserve(request(1), wanted);
      ASSERT_TRUE(reservation.held());
      std::vector<PageId> taken;
      while (reservation.left(group) > 0) {
        taken.push_back(reservation.take(group, kPaddingPage));
        ASSERT_GE(taken.back().value * pool->plan().page_strides[g], reach);
      }
      for (const PageId page : taken) pool->give(group, page, request(1));
    }
  }
}

TEST(PagePool, EveryReferenceHasAnOwner) {
  const auto pool = make_pool({64}, 2, true, 64 * 64 * 64);
  Reservation reservation = pool->reserve(request(1), counts(2));
  const PageId page = reservation.take(kFull, kPaddingPage);
  const Owner tree{OwnerKind::tree, 9};
  const Owner transfer{OwnerKind::transfer, 4};
  pool->adopt(kFull, page, tree);
  pool->adopt(kFull, page, transfer);
  EXPECT_EQ(pool->references(kFull, page), 3);
  pool->give(kFull, page, request(1));
  pool->pass(kFull, page, transfer, Owner{OwnerKind::draft, 1});
  const std::vector<Holding> holdings = pool->holdings();
  ASSERT_EQ(holdings.size(), 3u);
  EXPECT_EQ(to_string(holdings[0].owner), "request 1");
  EXPECT_EQ(holdings[0].promised.of[0], 1);
  EXPECT_EQ(to_string(holdings[1].owner), "tree namespace 9");
  EXPECT_EQ(to_string(holdings[2].owner), "draft of 1");
  EXPECT_TRUE(pool->take_freed().empty());
  pool->give(kFull, page, tree);
  pool->give(kFull, page, Owner{OwnerKind::draft, 1});
  ASSERT_EQ(pool->take_freed().size(), 1u);
  EXPECT_TRUE(pool->take_freed().empty());
  EXPECT_TRUE(pool->check_all().empty());
}

TEST(PagePoolDeathTest, GivingWhatOneDoesNotHoldNamesTheHolder) {
  const auto pool = make_pool({64}, 2, false, 64 * 64 * 64);
  Reservation reservation = pool->reserve(request(7), counts(1));
  const PageId page = reservation.take(kFull, kPaddingPage);
  EXPECT_DEATH(pool->give(kFull, page, request(8)), "held by request 7\\) is not held by request 8");
  EXPECT_DEATH(reservation.take(kFull, page), "nothing of group 0 is promised");
}

TEST(PagePool, TooFewSlabsAreRefusedWithNumbers) {
  PoolConfig config;
  const std::vector<std::int64_t> strides = {64, 128};
  config.plan = *plan_slabs(strides, 0);
  config.slabs = 1;
  config.groups.resize(2);
  const auto pool = PagePool::create(std::move(config));
  ASSERT_FALSE(pool.ok());
  EXPECT_NE(pool.error().message.find("need 3 at least"), std::string::npos) << pool.error().message;
}

// Random reserve, take, adopt, give against a plain map of owners.
TEST(PagePool, RandomTraffic) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    std::mt19937_64 random(seed);
    const auto pool =
        make_pool({64, 192, 320}, 6 + static_cast<std::int64_t>(seed) * 5, false, 64 * 192 * 50);
    std::vector<std::pair<GroupPage, Owner>> held;
    for (int step = 0; step < 4000; ++step) {
      const Owner owner = request(static_cast<std::uint32_t>(random() % 50));
      if (random() % 2 == 0) {
        PageCounts wanted;
        for (int g = 0; g < 3; ++g)
          wanted.of[static_cast<std::size_t>(g)] = static_cast<std::int64_t>(random() % 6);
        Reservation reservation = pool->reserve(owner, wanted);
        for (std::uint32_t g = 0; g < 3 && reservation.held(); ++g) {
          // Sometimes not all: the rest rolls back.
          while (reservation.left(GroupId{g}) > static_cast<std::int64_t>(random() % 3)) {
            const PageId page =
                reservation.take(GroupId{g}, held.empty() ? kPaddingPage : held.back().first.page);
            held.push_back({{GroupId{g}, page}, owner});
          }
        }
      } else if (!held.empty()) {
        const std::size_t index = random() % held.size();
        const auto [place, holder] = held[index];
        const Owner tree{OwnerKind::tree, static_cast<std::uint32_t>(step)};
        if (random() % 4 == 0) {
          pool->adopt(place.group, place.page, tree);
          held.push_back({place, tree});
        } else {
          pool->give(place.group, place.page, holder);
          held[index] = held.back();
          held.pop_back();
        }
      }
      ASSERT_TRUE(pool->check_counters().empty());
      if (step % 50 == 0) {
        ASSERT_EQ(pool->check_all(), std::vector<std::string>());
      }
      // No byte belongs to two pages.
      if (step % 200 != 0) continue;
      std::map<std::int64_t, std::int64_t> bytes;
      for (const auto& [place, holder] : held) {
        const std::int64_t stride = pool->plan().page_strides[place.group.value];
        bytes[place.page.value * stride] = (place.page.value + 1) * stride;
      }
      std::int64_t end = 0;
      for (const auto& [first, last] : bytes) {
        ASSERT_GE(first, end);
        end = last;
      }
    }
    for (const auto& [place, holder] : held) pool->give(place.group, place.page, holder);
    EXPECT_TRUE(pool->idle());
    EXPECT_TRUE(pool->check_all().empty());
  }
}

}  // namespace
}  // namespace quire::kv
