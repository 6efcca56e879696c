// Test only: requests that take pages from a pool, share prefixes through a tree and give everything back,
// and what the device would hold in each page: for every token a stamp of all tokens up to it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "kv/page_hash.h"
#include "kv/prefix_tree.h"

namespace quire::kv::testing {

using Tokens = std::vector<std::int32_t>;

struct RigConfig {
  std::vector<GroupRule> rules;
  std::int64_t pages = 64;  // about so many of each group
  PrefixTreeConfig tree = {};
};

class TreeRig {
 public:
  struct User {
    SequenceId id;
    Tokens tokens;
    std::int32_t hit = 0;
    std::int32_t computed = 0;
    MissReport miss;
    Lease lease;
    std::vector<std::vector<PageId>> rows;  // [groups][entries], 0: released
  };

  explicit TreeRig(const RigConfig& config) : rules_(config.rules) {
    PoolConfig pool_config;
    std::vector<std::int64_t> strides(rules_.size(), 64);
    pool_config.plan = *plan_slabs(strides, 64 * 4);
    const std::int64_t per_slab = pool_config.plan.pages_per_slab[0];
    const auto groups = static_cast<std::int64_t>(rules_.size());
    pool_config.slabs = (config.pages * groups + per_slab - 1) / per_slab + 1;
    for (const GroupRule& rule : rules_)
      pool_config.groups.push_back({std::string(to_string(rule.keep)), rule});
    pool = PagePool::create(std::move(pool_config)).value();
    tree = std::make_unique<PrefixTree>(config.tree, *pool);
  }

  // Looks up, shares, copies or adopts, takes pages for all tokens, "computes" the rest. False: no room.
  bool begin(User& user, NamespaceId space, std::int32_t limit) {
    user.id = SequenceId{next_id_++};
    const Match match = tree->match(space, user.tokens, limit);
    user.hit = match.tokens;
    user.miss = match.miss;
    user.lease = tree->lock(match);
    const bool copies = match.tokens % page() > 0 && !match.adoptable;
    const NodeRef source = copies ? tree->lock_source(match) : NodeRef{};
    if (match.adoptable) tree->adopt(match, user.id, user.lease);
    share(user, match, source);
    const bool seated = seat(user, match, source);
    unpin(user, match, source);
    if (!seated) {
      end(user);
      return false;
    }
    check_content(user);
    write(user, match.tokens, size(user));
    user.computed = size(user);
    return true;
  }
  void publish(User& user, NamespaceId space, std::int32_t tokens, std::int32_t priority = 0) {
    Publication publication{.space = space, .sequence = user.id, .priority = priority};
    publication.tokens = std::span(user.tokens).first(static_cast<std::size_t>(tokens));
    for (std::size_t g = 0; g < rules_.size(); ++g) publication.rows[g] = user.rows[g];
    tree->publish(publication, user.lease);
  }
  // Drops what the windows have left behind.
  void slide(User& user) {
    tree->seal(user.id, user.lease, user.computed);
    for (std::size_t g = 0; g < rules_.size(); ++g) {
      const std::int64_t live = first_live_entry(rules_[g], Committed{user.computed});
      for (std::int64_t e = 0; e < live && e < static_cast<std::int64_t>(user.rows[g].size()); ++e)
        give(user, g, user.rows[g][static_cast<std::size_t>(e)]);
    }
  }
  void end(User& user) {
    const std::array<PageId, kMaxGroups> kept = tree->settle(user.id, user.lease);
    for (std::size_t g = 0; g < rules_.size(); ++g) {
      for (PageId& id : user.rows[g]) {
        if (id == kept[g]) id = kPaddingPage;
        give(user, g, id);
      }
    }
    tree->release(user.lease);
  }
  // A whole life.
  std::int32_t run(const Tokens& tokens, NamespaceId space) {
    User user;
    user.tokens = tokens;
    EXPECT_TRUE(begin(user, space, size(user)));
    publish(user, space, size(user));
    end(user);
    return user.hit;
  }
  void expect_sound() const {
    EXPECT_EQ(tree->check(), std::vector<std::string>());
    EXPECT_EQ(pool->check_all(), std::vector<std::string>());
  }

  static std::int32_t size(const User& user) { return static_cast<std::int32_t>(user.tokens.size()); }
  std::int32_t page() const { return rules_[0].page_tokens; }

  std::unique_ptr<PagePool> pool;
  std::unique_ptr<PrefixTree> tree;

 private:
  static GroupId group(std::size_t g) { return GroupId{static_cast<std::uint32_t>(g)}; }
  Owner owner(const User& user) const { return Owner{OwnerKind::request, user.id.value}; }
  void give(const User& user, std::size_t g, PageId& id) {
    if (id != kPaddingPage) pool->give(group(g), id, owner(user));
    id = kPaddingPage;
  }
  // References on what the request shares, and on the pages that it will copy from.
  void share(User& user, const Match& match, NodeRef source) {
    user.rows.assign(rules_.size(), {});
    const std::int64_t whole = match.tokens / page();
    tree->pages(user.lease.path, [&](std::int64_t entry, GroupId g, PageId id) {
      if (entry >= whole + (match.adoptable ? 1 : 0)) return;
      const bool needed = entry >= first_live_entry(rules_[g.value], Committed{match.tokens});
      user.rows[g.value].push_back(needed ? id : kPaddingPage);
      if (needed && id != kPaddingPage && entry < whole) pool->adopt(g, id, owner(user));
    });
    for (std::size_t g = 0; g < rules_.size() && source; ++g) {
      const PageId from = tree->page_of(source, whole, group(g));
      if (from != kPaddingPage) pool->adopt(group(g), from, Owner{OwnerKind::transfer, user.id.value});
    }
  }
  void unpin(const User& user, const Match& match, NodeRef source) {
    for (std::size_t g = 0; g < rules_.size() && source; ++g) {
      const PageId from = tree->page_of(source, match.tokens / page(), group(g));
      if (from != kPaddingPage) pool->give(group(g), from, Owner{OwnerKind::transfer, user.id.value});
    }
    if (source) tree->release(source);
  }
  bool seat(User& user, const Match& match, NodeRef source) {
    const std::int64_t whole = match.tokens / page();
    PageCounts need;
    for (std::size_t g = 0; g < rules_.size(); ++g)
      need.of[g] = pages_for(rules_[g], size(user)) - whole - (match.adoptable ? 1 : 0);
    if (!tree->make_room(need, Pressure::admission)) return false;
    Reservation promise = pool->reserve(owner(user), need);
    tree->touch(user.lease.path, match.tokens, 0);
    for (std::size_t g = 0; g < rules_.size(); ++g) {
      while (promise.left(group(g)) > 0) {
        const PageId fresh = promise.take(group(g), kPaddingPage);
        user.rows[g].push_back(fresh);
        content_[{g, fresh.value}].assign(static_cast<std::size_t>(page()), 0);
        if (!source || static_cast<std::int64_t>(user.rows[g].size()) != whole + 1) continue;
        const PageId from = tree->page_of(source, whole, group(g));
        for (std::int32_t t = 0; t < match.tokens % page() && from != kPaddingPage; ++t)
          content_[{g, fresh.value}][static_cast<std::size_t>(t)] =
              content_[{g, from.value}][static_cast<std::size_t>(t)];
      }
    }
    return true;
  }
  // Every key that the row behind the hit sees is there.
  void check_content(const User& user) {
    for (std::size_t g = 0; g < rules_.size(); ++g) {
      std::uint64_t stamp = 0;
      for (std::int32_t t = 0; t < user.hit; ++t) {
        stamp = mix_hash(stamp, static_cast<std::uint32_t>(user.tokens[static_cast<std::size_t>(t)]));
        if (t < visible_begin(rules_[g], user.hit)) continue;
        const PageId id = user.rows[g].at(static_cast<std::size_t>(t / page()));
        ASSERT_NE(id, kPaddingPage) << "token " << t << " of group " << g;
        ASSERT_EQ((content_[{g, id.value}].at(static_cast<std::size_t>(t % page()))), stamp)
            << "token " << t << " of group " << g;
      }
    }
  }
  void write(const User& user, std::int32_t begin, std::int32_t end) {
    std::uint64_t stamp = 0;
    for (std::int32_t t = 0; t < end; ++t) {
      stamp = mix_hash(stamp, static_cast<std::uint32_t>(user.tokens[static_cast<std::size_t>(t)]));
      for (std::size_t g = 0; g < rules_.size() && t >= begin; ++g) {
        const PageId id = user.rows[g][static_cast<std::size_t>(t / page())];
        EXPECT_EQ(pool->sharers(group(g), id), 1) << "written, and shared";
        content_[{g, id.value}][static_cast<std::size_t>(t % page())] = stamp;
      }
    }
  }

  std::vector<GroupRule> rules_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<std::uint64_t>> content_;
  std::uint32_t next_id_ = 1;
};

}  // namespace quire::kv::testing
