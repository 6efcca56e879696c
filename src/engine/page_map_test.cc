// The page map against what the engine counts elsewhere, after every step of a load that shares, evicts,
// cancels and ends.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

class PageMapTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Golden golden = read_golden("models/" + GetParam());
    if (golden.path.empty()) FAIL() << "no golden data";
    Options options;
    options.max_context = 256;
    options.max_running = 4;  // so every request that has a page is named on it
    options.chunk_tokens = 24;
    options.page_size = 8;
    options.kv_memory_bytes = 512 << 10;
    options.threads = 2;
    options.overlap = false;  // so that what ended holds nothing
    engine_ = open_engine(golden.path, options);
    ASSERT_NE(engine_, nullptr);
  }

  // One use each, and what follows from it.
  static void check_page(const PageState& page) {
    switch (page.use) {
      case PageUse::free:
      case PageUse::reserved:
      case PageUse::elsewhere:
        EXPECT_EQ(page, PageState{.use = page.use});
        break;
      case PageUse::tree:
        EXPECT_TRUE(page.references >= 1 && page.requests == 0 && page.node != 0) << page.references;
        break;
      case PageUse::request:
        EXPECT_TRUE(page.references >= 1 && page.requests == 1 && page.request[0] != 0) << page.references;
        break;
      case PageUse::shared:
        EXPECT_TRUE(page.references >= 2 && page.requests >= 1) << page.references;
        break;
    }
  }

  void check_groups() {
    const EngineStats stats = engine_->stats();
    std::map<std::uint32_t, std::int64_t> node_pages;
    for (std::size_t g = 0; g < map_.groups.size(); ++g) {
      std::int64_t in_use = 0;
      for (const PageState& page : map_.groups[g].pages) {
        check_page(page);
        in_use += page.references > 0 ? 1 : 0;
        // A lent page has its request as its only owner, so what is left is the cache's own.
        if (page.node != 0 && page.use != PageUse::request) ++node_pages[page.node];
        uses_.insert(page.use);
      }
      EXPECT_EQ(map_.groups[g].pages[0].use, PageUse::reserved);
      EXPECT_EQ(in_use, stats.pages_in_use[g]) << map_.groups[g].name;
      check_slabs(map_.groups[g]);
    }
    std::int64_t cached = 0;
    for (const std::int64_t pages : stats.pages_cached) cached += pages;
    std::int64_t of_nodes = 0;
    for (const PrefixNode& node : map_.nodes) {
      EXPECT_EQ(node_pages[node.id], node.pages) << "node " << node.id;
      EXPECT_GT(node.tokens, 0);
      of_nodes += node.pages;
    }
    EXPECT_EQ(of_nodes, cached);
  }

  // Pages go from group to group by slabs: a slab is elsewhere as a whole. Page 0 stands for itself.
  static void check_slabs(const PageGroup& group) {
    ASSERT_EQ(std::ssize(group.pages) % group.pages_per_slab, 0);
    for (std::size_t p = 0; p < group.pages.size(); ++p) {
      const std::size_t first = p - p % static_cast<std::size_t>(group.pages_per_slab);
      if (first == 0) continue;
      EXPECT_EQ(group.pages[p].use == PageUse::elsewhere, group.pages[first].use == PageUse::elsewhere) << p;
    }
  }

  // A request's pages cover its tokens; only those that run have any.
  void check_requests() {
    for (const RequestState& request : map_.requests) {
      for (const PageGroup& group : map_.groups) {
        std::int64_t pages = 0;
        for (const PageState& page : group.pages)
          for (const std::uint64_t id : page.request) pages += id == request.id ? 1 : 0;
        if (!request.running) {
          EXPECT_EQ(pages, 0) << "request " << request.id;
        }
        // The last token's KV is not there yet. While its prompt is computed, a part is.
        const std::int64_t tokens = request.prompt_tokens + std::max(0, request.output_tokens - 1);
        const std::int64_t covering = ceil_div(tokens, group.page_tokens);
        if (request.running && request.output_tokens > 0 && group.keep == "all") {
          EXPECT_EQ(pages, covering) << "request " << request.id;
        }
        EXPECT_LE(pages, covering + 1) << "request " << request.id;
      }
    }
    EXPECT_EQ(std::count_if(map_.requests.begin(), map_.requests.end(),
                            [](const RequestState& r) { return r.running; }),
              engine_->queue().running);
  }

  std::unique_ptr<Engine> engine_;
  PageMap map_;
  std::set<PageUse> uses_;  // met
};

TEST_P(PageMapTest, EveryPageHasItsUseAfterEveryStep) {
  std::mt19937_64 random(3);
  std::vector<std::int32_t> common(40);
  for (std::int32_t& id : common) id = static_cast<std::int32_t>(random() % 250);
  std::vector<RequestId> ids;
  for (int i = 0; i < 24; ++i) {
    std::vector<std::int32_t> prompt(common.begin(), common.begin() + static_cast<int>(random() % 40) + 1);
    for (std::size_t t = random() % 60; t > 0; --t)
      prompt.push_back(static_cast<std::int32_t>(random() % 250));
    ids.push_back(submit(*engine_, greedy_request(prompt, 1 + static_cast<std::int32_t>(random() % 30))));
  }
  std::vector<Output> outputs;
  for (std::size_t step = 0; engine_->step(outputs); ++step) {
    if (step % 9 == 5 && step / 9 < ids.size()) engine_->cancel(ids[step / 9]);
    outputs.clear();
    engine_->page_map(map_);
    check_groups();
    check_requests();
    if (HasFailure()) FAIL() << "after step " << step;
  }
  EXPECT_TRUE(map_.requests.empty());
  for (const PageUse use : {PageUse::free, PageUse::tree, PageUse::request, PageUse::shared})
    EXPECT_TRUE(uses_.contains(use)) << kPageUseNames[static_cast<std::size_t>(use)];
  EXPECT_EQ(uses_.contains(PageUse::elsewhere), map_.groups.size() > 1);
}

// What the counts of the prefix cache and of the KV memory say, on two requests with one prompt.
TEST_P(PageMapTest, CountsOfTheCache) {
  std::vector<std::int32_t> prompt(50, 7);
  submit(*engine_, greedy_request(prompt, 4));
  drain(*engine_);
  EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.looked_up_tokens, 50);
  EXPECT_EQ(stats.cached_tokens, 0);
  EXPECT_EQ(stats.kv_held, 0.0);
  EXPECT_GT(stats.kv_used, 0.0);
  submit(*engine_, greedy_request(prompt, 4));
  std::vector<Output> outputs;
  engine_->step(outputs);
  EXPECT_GT(engine_->stats().kv_held, 0.0);
  EXPECT_LE(engine_->stats().kv_held, engine_->stats().kv_used);
  const std::map<RequestId, Answer> answers = drain(*engine_);
  stats = engine_->stats();
  EXPECT_EQ(stats.looked_up_tokens, 100);
  EXPECT_EQ(stats.cached_tokens, 49);
  std::map<std::string, std::int64_t> why(stats.why_miss.begin(), stats.why_miss.end());
  EXPECT_EQ(why["no_prefix"], 1);
  EXPECT_EQ(why["none"], 1);
  for (const auto& [id, answer] : answers) {
    EXPECT_GE(answer.last.queued_s, 0.0);
    EXPECT_LE(answer.last.queued_s, answer.last.first_token_s);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PageMapTest, ::testing::Values("llama", "gemma3"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace quire::engine::testing
