// The prefix tree against naive models: a map of token vectors for what must hit, stamped pages for what a
// hit must contain, and a list sorted by last use for what must be evicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "kv/tree_rig.h"

namespace quire::kv::testing {
namespace {

std::int32_t common(const Tokens& a, const Tokens& b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return static_cast<std::int32_t>(n);
}

// Prompts that fork: two letters, so that prefixes meet again and again.
Tokens random_tokens(std::mt19937_64& random, std::size_t most) {
  Tokens tokens(1 + random() % most);
  const std::size_t calm = random() % (tokens.size() + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = i < calm ? 7 : static_cast<std::int32_t>(random() % 2);
  return tokens;
}

TEST(PrefixTreeProperty, NothingIsForgottenWhileThereIsRoom) {
  for (const std::int32_t page : {1, 2, 5, 16, 64}) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(::testing::Message() << "page " << page << " seed " << seed);
      std::mt19937_64 random(seed);
      TreeRig rig({.rules = {{Keep::all, 0, page}}, .pages = 60 * (60 / page + 2)});
      const NamespaceId space = rig.tree->open({});
      std::vector<Tokens> known;
      std::deque<TreeRig::User> running;
      for (int i = 0; i < 60; ++i) {
        TreeRig::User user{.tokens = random_tokens(random, 60)};
        const auto limit = static_cast<std::int32_t>(random() % (user.tokens.size() + 1));
        std::int32_t longest = 0;
        for (const Tokens& other : known) longest = std::max(longest, common(user.tokens, other));
        Probe probe;
        ASSERT_EQ(rig.tree->probe(space, user.tokens, probe), longest);
        ASSERT_TRUE(rig.begin(user, space, limit));
        ASSERT_EQ(user.hit, std::min(limit, longest));
        // In pieces, as chunks would, or not at all.
        std::int32_t published = user.hit;
        while (published < TreeRig::size(user) && random() % 4 > 0) {
          published += 1 + static_cast<std::int32_t>(random() % 20);
          published = std::min(published, TreeRig::size(user));
          rig.publish(user, space, published);
          known.push_back({user.tokens.begin(), user.tokens.begin() + published});
        }
        rig.expect_sound();
        running.push_back(std::move(user));
        if (running.size() > random() % 5) {
          std::swap(running.front(), running[random() % running.size()]);
          rig.end(running.front());
          running.pop_front();
          rig.expect_sound();
        }
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
      for (TreeRig::User& user : running) rig.end(user);
      rig.expect_sound();
      rig.tree->clear();
      ASSERT_TRUE(rig.pool->idle());
      ASSERT_EQ(rig.tree->stats().nodes, 0);
    }
  }
}

struct Storm {
  std::vector<GroupRule> rules;
  EvictionPolicy policy = EvictionPolicy::lru;
  std::int32_t copy_min = 1;
};

// Random lives in a small pool with windows, chunks, retries, aborts: no hit may see a wrong key, nothing may
// leak, and every lease releases what it acquired.
void storm(std::uint64_t seed, const Storm& parameters) {
  std::mt19937_64 random(seed);
  TreeRig rig({.rules = parameters.rules,
               .pages = 8 + static_cast<std::int64_t>(random() % 60),
               .tree = {.policy = parameters.policy, .copy_min_tokens = parameters.copy_min}});
  const NamespaceId spaces[] = {rig.tree->open({}), rig.tree->open({"", "", "tenant", ""})};
  struct Running {
    TreeRig::User user;
    NamespaceId space;
    std::int32_t published = 0;
  };
  std::vector<Running> running;
  std::map<std::size_t, Probe> probes;
  for (int i = 0; i < 150; ++i) {
    const auto which = running.empty() ? 0 : random() % running.size();
    switch (random() % 4) {
      case 0: {
        Running next{.user = {.tokens = random_tokens(random, 40)}, .space = spaces[random() % 2]};
        const auto limit = static_cast<std::int32_t>(random() % (next.user.tokens.size() + 1));
        if (!rig.begin(next.user, next.space, limit)) break;
        next.published = next.user.hit;
        running.push_back(std::move(next));
        break;
      }
      case 1: {
        if (running.empty()) break;
        Running& one = running[which];
        one.published += static_cast<std::int32_t>(random() % 20);
        one.published = std::min(one.published, TreeRig::size(one.user));
        if (one.published > 0)
          rig.publish(one.user, one.space, one.published, static_cast<std::int32_t>(random() % 3));
        if (random() % 2 == 0) rig.slide(one.user);
        break;
      }
      case 2: {
        if (running.empty()) break;
        rig.end(running[which].user);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      }
      default: {
        PageCounts counts;
        counts.of[random() % parameters.rules.size()] = static_cast<std::int64_t>(random() % 20);
        if (random() % 3 == 0) rig.tree->make_room(counts, Pressure::growth);
        if (random() % 40 == 0) rig.tree->clear();
      }
    }
    rig.expect_sound();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "operation " << i;
  }
  for (Running& one : running) rig.end(one.user);
  rig.expect_sound();
  rig.tree->clear();
  ASSERT_TRUE(rig.pool->idle());
}

TEST(PrefixTreeProperty, RandomLivesInASmallPool) {
  for (const std::int32_t page : {1, 2, 4, 16}) {
    const GroupRule all{Keep::all, 0, page};
    const Storm storms[] = {
        {{all}},
        {{all}, EvictionPolicy::fifo},
        {{all}, EvictionPolicy::lfu, 3},
        {{all, {Keep::window, 9, page}}, EvictionPolicy::lru},
        {{{Keep::window, 1, page}, all}, EvictionPolicy::priority},
        {{all, {Keep::chunk, 12, page}, {Keep::window, 5, page}}, EvictionPolicy::fifo, 2},
        {{{Keep::window, 7, page}}},
    };
    for (std::size_t s = 0; s < std::size(storms); ++s) {
      for (std::uint64_t seed = 1; seed <= 25; ++seed) {
        SCOPED_TRACE(::testing::Message() << "page " << page << " storm " << s << " seed " << seed);
        storm(seed, storms[s]);
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
}

// A page as a naive LRU knows it: who follows it, when it was used last, who holds it.
struct NaivePage {
  std::uint64_t before = 0;
  std::uint64_t used = 0;
  int children = 0;
};

TEST(PrefixTreeProperty, EvictsInTheOrderOfASimpleLru) {
  constexpr std::int32_t kPage = 2;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    // With hits inside pages: what is copied from is held for the moment, and counts as used no more than
    // before.
    TreeRig rig({.rules = {{Keep::all, 0, kPage}}, .pages = 100, .tree = {.record_events = true}});
    const NamespaceId space = rig.tree->open({});
    std::map<std::uint64_t, NaivePage> naive;
    std::uint64_t now = 0;
    std::uint64_t seed_hash = 1;
    for (int field = 0; field < 4; ++field) seed_hash = hash_field(seed_hash, "");
    std::vector<TreeEvent> events;
    std::uint64_t seen = 0;
    int evicted = 0;
    for (int i = 0; i < 120; ++i) {
      Tokens tokens = random_tokens(random, 30);
      tokens.resize((tokens.size() + 1) / 2 * 2, 3);
      ++now;
      std::uint64_t before = seed_hash;
      for (std::size_t t = 0; t < tokens.size(); t += kPage) {
        before = hash_page(before, std::span(tokens).subspan(t, kPage));
        const auto hit = naive.find(before);
        if (hit == naive.end()) break;
        hit->second.used = now;
      }
      const bool copied = rig.run(tokens, space) % kPage > 0;
      seen = rig.tree->events(seen, events) + events.size();
      const auto take_removed = [&](bool source_held) {
        for (const TreeEvent& event : events) {
          if (event.kind != EventKind::removed) continue;
          const NaivePage gone = naive.at(event.hash);
          ASSERT_EQ(gone.children, 0);
          for (const auto& [hash, page] : naive) {
            if (page.children > 0 || source_held) continue;
            ASSERT_LE(gone.used, page.used) << "seed " << seed << " run " << i;
          }
          naive.erase(event.hash);
          if (const auto parent = naive.find(gone.before); parent != naive.end()) --parent->second.children;
          ++evicted;
        }
      };
      take_removed(copied);  // by admission, before the new pages came
      before = seed_hash;
      for (std::size_t t = 0; t < tokens.size(); t += kPage) {
        const std::uint64_t hash = hash_page(before, std::span(tokens).subspan(t, kPage));
        if (naive.emplace(hash, NaivePage{before, now, 0}).second && naive.contains(before))
          ++naive[before].children;
        naive[hash].used = now;
        before = hash;
      }
      events.clear();
      if (random() % 4 == 0) {
        PageCounts counts;
        counts.of[0] = rig.pool->free_slabs() * rig.pool->plan().pages_per_slab[0] +
                       static_cast<std::int64_t>(random() % 12);
        rig.tree->make_room(counts, Pressure::growth);
        seen = rig.tree->events(seen, events) + events.size();
        take_removed(false);
        events.clear();
      }
      ASSERT_FALSE(::testing::Test::HasFailure());
      ASSERT_EQ(static_cast<std::int64_t>(naive.size()), rig.tree->stats().pages.of[0]);
    }
    EXPECT_GT(evicted, 10);
  }
}

// A router that only hears the events knows exactly which pages are there.
TEST(PrefixTreeProperty, EventsAreACompleteAccount) {
  std::mt19937_64 random(3);
  TreeRig rig({.rules = {{Keep::all, 0, 4}}, .pages = 40, .tree = {.record_events = true}});
  const NamespaceId space = rig.tree->open({});
  std::set<std::uint64_t> index;
  std::uint64_t seen = 0;
  std::uint64_t seed = 1;
  for (int field = 0; field < 4; ++field) seed = hash_field(seed, "");
  for (int i = 0; i < 150; ++i) {
    rig.run(random_tokens(random, 50), space);
    std::vector<TreeEvent> events;
    seen = rig.tree->events(seen, events) + events.size();
    for (const TreeEvent& event : events) {
      const bool stored = event.kind == EventKind::stored;
      ASSERT_EQ(index.contains(event.hash), !stored);
      ASSERT_TRUE(event.before == seed || index.contains(event.before));
      if (stored) index.insert(event.hash);
      if (!stored) index.erase(event.hash);
    }
    const Tokens query = random_tokens(random, 50);
    std::uint64_t chain = seed;
    std::int32_t whole = 0;
    while (whole + 4 <= static_cast<std::int32_t>(query.size())) {
      chain = hash_page(chain, std::span(query).subspan(static_cast<std::size_t>(whole), 4));
      if (!index.contains(chain)) break;
      whole += 4;
    }
    ASSERT_EQ(rig.tree->match(space, query, 1000).tokens / 4 * 4, whole);
  }
}

}  // namespace
}  // namespace quire::kv::testing
