// Examples of the prefix tree; prefix_tree_property_test.cc has random ones against a naive model.
#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kv/tree_rig.h"

namespace quire::kv::testing {
namespace {

Tokens sequence(std::int32_t begin, std::int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TreeRig full(std::int32_t page, std::int64_t pages = 64, PrefixTreeConfig config = {}) {
  return TreeRig({.rules = {{Keep::all, 0, page}}, .pages = pages, .tree = config});
}

TEST(PrefixTree, HitsAreTokenGranularAtAnyPageSize) {
  for (const std::int32_t page : {1, 3, 4, 16, 64}) {
    TreeRig rig = full(page, 200);
    const NamespaceId space = rig.tree->open({});
    const Tokens system = sequence(0, 50);
    EXPECT_EQ(rig.run(system + sequence(1000, 7), space), 0);
    EXPECT_EQ(rig.run(system + sequence(2000, 9), space), 50) << page;
    EXPECT_EQ(rig.run(system + sequence(1000, 7) + sequence(5000, 30), space), 57) << page;
    EXPECT_EQ(rig.run(sequence(0, 20), space), 20) << page;
    EXPECT_EQ(rig.run(sequence(0, 20) + sequence(3000, 5), space), 20) << page;
    EXPECT_EQ(rig.run(sequence(1, 20), space), 0) << page;
    rig.expect_sound();
    rig.tree->close(space);
  }
}

TEST(PrefixTree, ARunningRequestsTailIsLentAndNeverShared) {
  TreeRig rig = full(8);
  const NamespaceId space = rig.tree->open({});
  TreeRig::User first{.tokens = sequence(0, 21)};
  ASSERT_TRUE(rig.begin(first, space, 20));
  rig.publish(first, space, 21);
  EXPECT_EQ(rig.tree->stats().pages.of[0], 2);  // 16 tokens; the page of the other 5 is the request's
  rig.expect_sound();
  TreeRig::User second{.tokens = sequence(0, 20) + sequence(100, 4)};
  ASSERT_TRUE(rig.begin(second, space, 24));
  EXPECT_EQ(second.hit, 20);
  EXPECT_EQ(second.rows[0][1], first.rows[0][1]);
  EXPECT_NE(second.rows[0][2], first.rows[0][2]);
  rig.expect_sound();
  rig.end(first);
  EXPECT_EQ(rig.tree->stats().pages.of[0], 3);
  rig.end(second);  // published nothing
  EXPECT_EQ(rig.tree->stats().pages.of[0], 3);
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 3);
  rig.expect_sound();
}

TEST(PrefixTree, APartialPageThatNobodyUsesChangesHands) {
  TreeRig rig = full(8);
  const NamespaceId space = rig.tree->open({});
  rig.run(sequence(0, 21), space);
  TreeRig::User next{.tokens = sequence(0, 21) + sequence(50, 10)};
  ASSERT_TRUE(rig.begin(next, space, 31));
  EXPECT_EQ(next.hit, 21);
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 4);  // 31 tokens, no page twice
  rig.expect_sound();
  // It is still known, and copied from now that it is written to.
  TreeRig::User other{.tokens = sequence(0, 21) + sequence(70, 2)};
  ASSERT_TRUE(rig.begin(other, space, 23));
  EXPECT_EQ(other.hit, 21);
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 5);
  rig.publish(next, space, 31);
  rig.end(next);
  rig.end(other);
  rig.expect_sound();
}

TEST(PrefixTree, ALongerPageTakesThePlaceOfAShorterOne) {
  TreeRig rig = full(8);
  const NamespaceId space = rig.tree->open({});
  TreeRig::User shorter{.tokens = sequence(0, 10)};
  TreeRig::User longer{.tokens = sequence(0, 13)};
  ASSERT_TRUE(rig.begin(shorter, space, 10));
  ASSERT_TRUE(rig.begin(longer, space, 13));
  rig.publish(shorter, space, 10);
  rig.publish(longer, space, 13);
  rig.expect_sound();
  rig.end(shorter);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 20), 20).tokens, 13);
  rig.end(longer);
  EXPECT_EQ(rig.tree->stats().pages.of[0], 2);
  EXPECT_EQ(rig.pool->in_use(GroupId{0}), 2);
  rig.expect_sound();
}

TEST(PrefixTree, NamespacesShareNothing) {
  TreeRig rig = full(4);
  const NamespaceKey base{"model", "adapter", "salt", "media"};
  const NamespaceId space = rig.tree->open(base);
  rig.run(sequence(0, 10), space);
  for (std::string NamespaceKey::*field :
       {&NamespaceKey::model, &NamespaceKey::adapter, &NamespaceKey::salt, &NamespaceKey::media}) {
    NamespaceKey changed = base;
    changed.*field += "2";
    const NamespaceId other = rig.tree->open(changed);
    const Match match = rig.tree->match(other, sequence(0, 10), 10);
    EXPECT_EQ(match.tokens, 0);
    EXPECT_EQ(match.miss.why, Miss::other_namespace);
    rig.tree->close(other);
  }
  // Equal bytes in other fields.
  const NamespaceId moved = rig.tree->open({"model", "adaptersalt", "", "media"});
  EXPECT_EQ(rig.tree->match(moved, sequence(0, 10), 10).tokens, 0);
  rig.tree->close(moved);
  const NamespaceId same = rig.tree->open(base);
  EXPECT_EQ(same, space);
  EXPECT_EQ(rig.tree->match(same, sequence(0, 10), 10).tokens, 10);
  rig.tree->close(same);
  rig.tree->close(space);
  rig.tree->clear();
  EXPECT_TRUE(rig.pool->idle());
  EXPECT_NE(rig.tree->open(base), NamespaceId{0});
  rig.expect_sound();
}

TEST(PrefixTree, LocksKeepTheirPathThroughSplits) {
  TreeRig rig = full(4, 20);
  const NamespaceId space = rig.tree->open({});
  TreeRig::User reader{.tokens = sequence(0, 32)};
  rig.run(sequence(0, 32), space);
  ASSERT_TRUE(rig.begin(reader, space, 32));
  rig.run(sequence(0, 16) + sequence(100, 8), space);  // splits what the reader holds
  rig.run(sequence(0, 8) + sequence(200, 8), space);
  rig.expect_sound();
  PageCounts all;
  all.of[0] = 100;
  EXPECT_FALSE(rig.tree->make_room(all, Pressure::growth));
  EXPECT_EQ(rig.tree->stats().evicted_pages, 0);  // nothing in vain
  rig.tree->clear();
  EXPECT_EQ(rig.tree->match(space, sequence(0, 32), 32).tokens, 32);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 16) + sequence(100, 8), 24).tokens, 16);
  rig.end(reader);
  rig.tree->clear();
  EXPECT_TRUE(rig.pool->idle());
  rig.expect_sound();
}

std::vector<std::int32_t> survivors(EvictionPolicy policy) {
  TreeRig rig = full(4, 10, {.policy = policy});
  const NamespaceId space = rig.tree->open({});
  for (const std::int32_t start : {100, 200, 300}) {
    TreeRig::User user{.tokens = sequence(start, 12)};
    EXPECT_TRUE(rig.begin(user, space, 12));
    rig.publish(user, space, 12, start == 200 ? 5 : 1);
    rig.end(user);
  }
  rig.run(sequence(100, 12), space);
  rig.run(sequence(100, 12), space);
  rig.run(sequence(300, 12), space);
  rig.run(sequence(200, 12), space);
  PageCounts counts;
  counts.of[0] = rig.pool->slabs() * rig.pool->plan().pages_per_slab[0] - 1 - 9 + 5;
  EXPECT_TRUE(rig.tree->make_room(counts, Pressure::growth));
  rig.expect_sound();
  std::vector<std::int32_t> left;
  for (const std::int32_t start : {100, 200, 300})
    left.push_back(rig.tree->match(space, sequence(start, 12), 12).tokens);
  return left;
}

TEST(PrefixTree, PoliciesDifferInWhatTheyEvict) {
  // Five of nine pages go: the first in the order as a whole, two of the next one.
  EXPECT_EQ(survivors(EvictionPolicy::lru), (std::vector<std::int32_t>{0, 12, 4}));
  EXPECT_EQ(survivors(EvictionPolicy::fifo), (std::vector<std::int32_t>{0, 4, 12}));
  EXPECT_EQ(survivors(EvictionPolicy::lfu), (std::vector<std::int32_t>{12, 4, 0}));
  EXPECT_EQ(survivors(EvictionPolicy::priority), (std::vector<std::int32_t>{0, 12, 4}));
}

// Evicts one page.
void evict_one(TreeRig& rig) {
  PageCounts counts;
  const std::int64_t before = rig.tree->stats().evicted_pages;
  while (rig.pool->can_promise(counts)) ++counts.of[0];
  ASSERT_TRUE(rig.tree->make_room(counts, Pressure::growth));
  ASSERT_EQ(rig.tree->stats().evicted_pages, before + 1);
}

TEST(PrefixTree, ACopyIsNoUseOfThePageItCameFrom) {
  TreeRig rig = full(4, 20);
  const NamespaceId space = rig.tree->open({});
  const auto left = [&](const Tokens& tokens) { return rig.tree->match(space, tokens, 100).tokens; };
  rig.run(sequence(0, 12), space);
  rig.run(sequence(100, 12), space);
  EXPECT_EQ(rig.run(sequence(0, 2) + sequence(50, 6), space), 2);
  EXPECT_EQ(rig.run(sequence(0, 6) + sequence(60, 6), space), 6);
  evict_one(rig);
  // The end of the oldest; its first page was shared, and the second one only copied from.
  EXPECT_EQ(left(sequence(0, 12)), 8);
  evict_one(rig);
  EXPECT_EQ(left(sequence(0, 12)), 6);  // of which 2 are the copy's
  evict_one(rig);
  EXPECT_EQ(left(sequence(100, 12)), 8);
  rig.expect_sound();
}

TEST(PrefixTree, APartialPageCountsAsOlderTheLessItHolds) {
  TreeRig rig = full(8, 20);
  const NamespaceId space = rig.tree->open({});
  const auto left = [&](std::int32_t start) {
    return rig.tree->match(space, sequence(start, 16), 16).tokens;
  };
  rig.run(sequence(0, 16), space);
  rig.run(sequence(100, 9), space);   // the last page holds 1 token of 8,
  rig.run(sequence(200, 15), space);  // and 7 of 8
  rig.run(sequence(300, 16), space);
  evict_one(rig);
  EXPECT_EQ(left(100), 8);  // younger than the first one by less than the factor of 8
  evict_one(rig);
  EXPECT_EQ(left(0), 8);  // of the full ones, and of the almost full one, the oldest
  EXPECT_EQ(left(200), 15);
  evict_one(rig);
  EXPECT_EQ(left(0), 0);
  evict_one(rig);
  EXPECT_EQ(left(100), 0);
  evict_one(rig);
  EXPECT_EQ(left(200), 8);
  rig.expect_sound();
}

TEST(PrefixTree, SaysWhyThePrefixEnded) {
  TreeRig rig = full(4, 10, {.copy_min_tokens = 3});
  const NamespaceId space = rig.tree->open({});
  const auto why = [&](const Tokens& tokens) {
    return rig.tree->match(space, tokens, static_cast<std::int32_t>(tokens.size()));
  };
  rig.run(sequence(0, 14), space);
  EXPECT_EQ(why(sequence(0, 14)).miss.why, Miss::none);
  EXPECT_EQ(why(sequence(0, 20)).miss.why, Miss::no_prefix);
  EXPECT_EQ(why(sequence(500, 20)).miss.why, Miss::no_prefix);
  EXPECT_EQ(why(sequence(0, 6)).tokens, 4);
  EXPECT_EQ(why(sequence(0, 6)).miss.why, Miss::below_copy_limit);
  EXPECT_EQ(why(sequence(0, 7)).tokens, 7);
  rig.run(sequence(500, 36), space);
  const Match gone = why(sequence(0, 14));
  EXPECT_EQ(gone.miss.why, Miss::evicted);
  EXPECT_EQ(gone.miss.pressure, Pressure::admission);
  EXPECT_GT(gone.miss.evicted_at, 0u);
  TreeRig off = full(4, 10, {.enabled = false});
  off.run(sequence(0, 14), off.tree->open({}));
  EXPECT_EQ(off.tree->match(NamespaceId{1}, sequence(0, 14), 14).miss.why, Miss::off);
  EXPECT_TRUE(off.pool->idle());
}

// Also of a prompt that ends inside the page, or shares half of it.
TEST(PrefixTree, SaysWhyWhereLessThanAPageIsLeft) {
  TreeRig rig = full(8);
  const NamespaceId space = rig.tree->open({});
  const NamespaceId other = rig.tree->open({.salt = "other"});
  const auto why = [&](NamespaceId in, const Tokens& tokens) {
    return rig.tree->match(in, tokens, static_cast<std::int32_t>(tokens.size()) - 1).miss.why;
  };
  const auto expect = [&](NamespaceId in, Miss miss) {
    for (int n = 2; n <= 24; ++n) EXPECT_EQ(why(in, sequence(0, n)), miss) << n;
    for (int n = 2; n <= 5; ++n) EXPECT_EQ(why(in, sequence(100, n)), miss) << n;
    EXPECT_EQ(why(in, sequence(100, 4) + sequence(300, 9)), miss);
    EXPECT_EQ(why(in, sequence(100, 3) + sequence(300, 9)), Miss::no_prefix);
    EXPECT_EQ(why(in, sequence(101, 4)), Miss::no_prefix);
    rig.expect_sound();
  };
  rig.run(sequence(0, 20), space);
  rig.run(sequence(100, 5), space);  // less than a page all in all
  rig.run(sequence(99, 2), other);   // begins a prompt, and neither of these
  expect(other, Miss::other_namespace);
  // It goes on, past one of the other namespace that begins alike.
  rig.run(sequence(100, 5) + sequence(250, 1), other);
  rig.run(sequence(100, 5) + sequence(400, 10), space);
  EXPECT_EQ(why(other, sequence(100, 5) + sequence(400, 5)), Miss::other_namespace);
  EXPECT_EQ(why(space, sequence(100, 5) + sequence(250, 1) + sequence(1, 1)), Miss::other_namespace);
  EXPECT_EQ(why(space, sequence(100, 5) + sequence(251, 2)), Miss::no_prefix);
  rig.expect_sound();

  rig.tree->clear();
  EXPECT_EQ(rig.tree->stats().nodes, 0);
  expect(space, Miss::evicted);
  EXPECT_EQ(why(other, sequence(0, 7)), Miss::no_prefix);
  EXPECT_EQ(why(other, sequence(99, 2)), Miss::evicted);
  // What is there again says nothing of what follows it, and the rest still went.
  rig.run(sequence(0, 10), space);
  const Match match = rig.tree->match(space, sequence(0, 16), 15);
  EXPECT_EQ(match.tokens, 10);
  EXPECT_EQ(match.miss.why, Miss::evicted);
  EXPECT_EQ(match.miss.pressure, Pressure::clearing);
  EXPECT_EQ(why(space, sequence(0, 13)), Miss::evicted);
  EXPECT_EQ(why(space, sequence(0, 10) + sequence(600, 3)), Miss::no_prefix);
  rig.expect_sound();
}

TEST(PrefixTree, AHitEndsWhereEveryGroupHasItsWindow) {
  TreeRig rig({.rules = {{Keep::all, 0, 4}, {Keep::window, 8, 4}}, .pages = 64});
  const NamespaceId space = rig.tree->open({});
  TreeRig::User user{.tokens = sequence(0, 40)};
  ASSERT_TRUE(rig.begin(user, space, 40));
  rig.slide(user);  // keys [33, 40) are left: entries 8 and 9
  rig.publish(user, space, 40);
  rig.end(user);
  rig.expect_sound();
  EXPECT_EQ(rig.tree->stats().pages.of[1], 2);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 40), 40).tokens, 40);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 39), 39).tokens, 39);
  const Match shorter = rig.tree->match(space, sequence(0, 30), 30);
  EXPECT_EQ(shorter.tokens, 0);
  EXPECT_EQ(shorter.miss.why, Miss::window_gone);
  // Computed again, the middle gets its window back.
  EXPECT_EQ(rig.run(sequence(0, 30), space), 0);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 30) + sequence(90, 9), 39).tokens, 28);
  rig.expect_sound();
}

TEST(PrefixTree, WindowPagesGoBeforeLeavesAndLeavesKeepTheirTokens) {
  TreeRig rig({.rules = {{Keep::all, 0, 4}, {Keep::window, 8, 4}}, .pages = 12});
  const NamespaceId space = rig.tree->open({});
  rig.run(sequence(0, 40), space);
  EXPECT_EQ(rig.tree->stats().pages.of[1], 10);
  PageCounts counts;
  counts.of[1] = rig.pool->free_slabs() * rig.pool->plan().pages_per_slab[1] + 4;
  ASSERT_TRUE(rig.tree->make_room(counts, Pressure::growth));
  EXPECT_EQ(rig.tree->stats().pages.of[0], 10);
  EXPECT_LT(rig.tree->stats().pages.of[1], 10);
  EXPECT_EQ(rig.tree->match(space, sequence(0, 40), 40).tokens, 40);  // the end has its window
  rig.expect_sound();
}

TEST(PrefixTree, EventsNameEveryWholePage) {
  TreeRig rig = full(4, 8, {.record_events = true});
  const NamespaceId space = rig.tree->open({"m", "", "", ""});
  rig.run(sequence(0, 10), space);
  std::vector<TreeEvent> events;
  EXPECT_EQ(rig.tree->events(0, events), 0u);
  ASSERT_EQ(events.size(), 2u);
  std::uint64_t seed = 1;
  for (const std::string_view field : {"m", "", "", ""}) seed = hash_field(seed, field);
  const Tokens tokens = sequence(0, 10);
  const std::uint64_t first = hash_page(seed, std::span(tokens).first(4));
  EXPECT_EQ(events[0], (TreeEvent{EventKind::stored, first, seed}));
  EXPECT_EQ(events[1],
            (TreeEvent{EventKind::stored, hash_page(first, std::span(tokens).subspan(4, 4)), first}));
  rig.tree->clear();
  events.clear();
  EXPECT_EQ(rig.tree->events(2, events), 2u);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, EventKind::removed);
  EXPECT_EQ(events[1], (TreeEvent{EventKind::removed, first, seed}));
  EXPECT_EQ(events[2].kind, EventKind::cleared);
  events.clear();
  EXPECT_EQ(rig.tree->events(5, events), 5u);
  EXPECT_EQ(rig.tree->events(900, events), 5u);  // of another life, say: nothing yet
  EXPECT_TRUE(events.empty());
}

TEST(PrefixTree, OnlyTheLastEventsAreKept) {
  TreeRig rig = full(1, 40, {.record_events = true});
  const NamespaceId space = rig.tree->open({});
  std::uint64_t made = 0;
  for (std::int32_t i = 0; made <= kMostEvents + 100; ++i) {
    rig.run(sequence(i * 20, 20), space);
    rig.tree->clear();
    made += 20 + 20 + 1;
  }
  std::vector<TreeEvent> events;
  EXPECT_EQ(rig.tree->events(7, events), made - kMostEvents);
  ASSERT_EQ(events.size(), kMostEvents);
  EXPECT_EQ(events.back().kind, EventKind::cleared);
  events.clear();
  EXPECT_EQ(rig.tree->events(made - 3, events), made - 3);
  EXPECT_EQ(events.size(), 3u);
}

TEST(PrefixTree, TheCheckerFindsAPageThatItsOwnerGaveAway) {
  TreeRig rig = full(4);
  const NamespaceId space = rig.tree->open({});
  rig.run(sequence(0, 10), space);
  ASSERT_EQ(rig.tree->check(), std::vector<std::string>());
  const Match match = rig.tree->match(space, sequence(0, 10), 10);
  const PageId page = rig.tree->page_of(match.node, 1, GroupId{0});
  rig.pool->give(GroupId{0}, page, Owner{OwnerKind::tree, space.value});
  ASSERT_FALSE(rig.tree->check().empty());
  EXPECT_NE(rig.tree->check()[0].find("is not held by tree"), std::string::npos) << rig.tree->check()[0];
  PageCounts one;
  one.of[0] = 1;
  Reservation again = rig.pool->reserve(Owner{OwnerKind::tree, space.value}, one);
  EXPECT_EQ(again.take(GroupId{0}, PageId{page.value - 1}), page);
}

}  // namespace
}  // namespace quire::kv::testing
