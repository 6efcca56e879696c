#include "kv/block_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kv/audit.h"

namespace quire::kv {
namespace {

constexpr GroupId kGroup{0};
constexpr SlotId kSlot{2};
constexpr SequenceId kSequence{5};

struct Fixture {
  Fixture() {
    PoolConfig config;
    const std::vector<std::int64_t> strides = {64};
    config.plan = *plan_slabs(strides, 64 * 64 * 16);
    config.slabs = 4;
    config.groups = {{"full", {Keep::window, 8, 4}}};
    pool = PagePool::create(std::move(config)).value();
    table.open(kSlot, kSequence);
  }
  void append(int pages) {
    PageCounts counts;
    counts.of[0] = pages;
    Reservation reservation = pool->reserve(owner, counts);
    while (reservation.left(kGroup) > 0) {
      table.append(kSlot, kGroup, reservation.take(kGroup, table.last(kSlot, kGroup)));
    }
  }
  void release_below(std::int64_t entry) {
    table.release_below(kSlot, kGroup, entry, [this](PageId page) { pool->give(kGroup, page, owner); });
  }
  const Owner owner{OwnerKind::request, kSequence.value};
  std::unique_ptr<PagePool> pool;
  BlockTable table{TableConfig{3, 40, {{Keep::window, 8, 4}}}};
};

TEST(BlockTable, AppendReleaseAndDeltas) {
  Fixture f;
  f.append(3);
  EXPECT_EQ(f.table.allocated(kSlot, kGroup), Allocated{12});
  std::vector<TableUpdate> updates;
  f.table.take_updates(updates);
  ASSERT_EQ(updates.size(), 3u);
  EXPECT_EQ(updates[2], (TableUpdate{kGroup, kSlot, 2, f.table.row(kSlot, kGroup)[2]}));
  f.release_below(2);
  f.release_below(1);
  EXPECT_EQ(f.table.row(kSlot, kGroup)[0], kPaddingPage);
  EXPECT_EQ(f.table.row(kSlot, kGroup)[1], kPaddingPage);
  EXPECT_EQ(f.table.live_pages(kSlot, kGroup), 1);
  EXPECT_EQ(f.table.allocated(kSlot, kGroup), Allocated{12});
  updates.clear();
  f.table.take_updates(updates);
  EXPECT_EQ(updates.size(), 2u);
  EXPECT_EQ(f.table.pending_updates(), 0u);
  EXPECT_TRUE(audit(*f.pool, f.table).empty());
  f.table.close(kSlot, [&](GroupId group, PageId page) { f.pool->give(group, page, f.owner); });
  EXPECT_EQ(f.table.pending_updates(), 0u);
  EXPECT_TRUE(leaks(*f.pool).empty());
  EXPECT_TRUE(f.table.row(kSlot, kGroup).empty());
}

TEST(BlockTableDeathTest, MisuseIsABug) {
  Fixture f;
  f.append(1);
  EXPECT_DEATH(f.table.open(kSlot, kSequence), "slot 2");
  EXPECT_DEATH(f.table.open(kPaddingSlot, kSequence), "slot 0");
  EXPECT_DEATH(f.table.append(kSlot, kGroup, kPaddingPage), "page 0");
}

// Each planted fault is found and named.
TEST(Audit, FindsALeakedPage) {
  Fixture f;
  f.append(2);
  f.table.release_below(kSlot, kGroup, 1, [](PageId) {});
  const std::vector<std::string> violations = audit(*f.pool, f.table);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0], "full: request 5 holds 2 pages, its row has 1");
  EXPECT_EQ(leaks(*f.pool)[0], "full: request 5 still holds 2 pages and a promise of 0");
}

TEST(Audit, FindsAPageFreedTooEarly) {
  Fixture f;
  f.append(2);
  f.pool->give(kGroup, f.table.row(kSlot, kGroup)[1], f.owner);
  std::vector<TableUpdate> updates;
  f.table.take_updates(updates);
  EXPECT_FALSE(check_step(*f.pool, f.table, updates).empty());
  EXPECT_NE(audit(*f.pool, f.table).at(0).find("not held by the request"), std::string::npos);
}

TEST(Audit, FindsAWritablePageWithTwoOwners) {
  Fixture f;
  f.append(2);
  f.pool->adopt(kGroup, f.table.row(kSlot, kGroup)[0], Owner{OwnerKind::tree, 1});
  EXPECT_TRUE(audit(*f.pool, f.table).empty());  // not the last page: shared, read only
  f.pool->adopt(kGroup, f.table.row(kSlot, kGroup)[1], Owner{OwnerKind::tree, 1});
  EXPECT_NE(audit(*f.pool, f.table).at(0).find("writable, with 2 owners"), std::string::npos);
}

TEST(Audit, FindsAPageTwiceInARow) {
  Fixture f;
  f.append(1);
  f.table.append(kSlot, kGroup, f.table.row(kSlot, kGroup)[0]);
  EXPECT_FALSE(audit(*f.pool, f.table).empty());
}

TEST(BlockTable, WhatNoMemoryHoldsIsRefusedWithTheNumbers) {
  // 2^20 x 2^31 entries of 4 bytes.
  const Result<BlockTable> table =
      BlockTable::create({1 << 20, std::numeric_limits<std::int32_t>::max(), {{Keep::all, 0, 1}}});
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, Code::no_resources);
  EXPECT_NE(table.error().message.find("--max-running"), std::string::npos) << table.error().message;
  EXPECT_TRUE(BlockTable::create({3, 40, {{Keep::all, 0, 4}}}).ok());
}

}  // namespace
}  // namespace quire::kv
