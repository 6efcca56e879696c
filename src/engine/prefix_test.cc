// Sharing prefixes through the real engine: the same tokens as without, whatever is cached, retracted,
// aborted or evicted, and as few prompt tokens computed as there are new ones.
#include <random>

#include "engine/golden_case.h"
#include "kv/page_hash.h"

namespace quire::engine::testing {
namespace {

constexpr std::int64_t kLlamaKvBytes = 2 * 2 * 128 * 2;  // per token: layers, K and V, one head of 128, bf16

using Ids = std::vector<std::int32_t>;

Ids random_ids(std::mt19937_64& random, std::size_t count) {
  Ids ids(count);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 250);
  return ids;
}

Ids join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::int64_t cached_of(const std::vector<Answer>& answers) {
  std::int64_t cached = 0;
  for (const Answer& answer : answers) cached += answer.last.cached_tokens;
  return cached;
}

class PrefixTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string root = quire::testing::golden_dir();
    path_ = root + "/models/" + GetParam();
    if (root.empty() || read_golden("models/" + GetParam()).path.empty()) FAIL() << "no golden data";
  }
  // Conversations that fork: answers join the prompts of what comes later.
  static std::vector<Request> family(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    std::vector<Ids> roots = {random_ids(random, 70), random_ids(random, 33)};
    std::vector<Request> requests;
    for (std::size_t i = 0; i < count; ++i) {
      Ids prompt = roots[random() % roots.size()];
      prompt.resize(1 + random() % prompt.size());
      prompt = join(prompt, random_ids(random, random() % 20));
      if (prompt.size() < 100) roots.push_back(prompt);
      Request request = greedy_request(prompt, 1 + static_cast<std::int32_t>(random() % 12));
      if (i % 3 == 1) {
        request.sampling.temperature = 0.8f;
        request.sampling.repetition_penalty = 1.3f;
        request.sampling.frequency_penalty = 0.3f;
        request.sampling.seed = 11;
        request.sequence_index = i;
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }
  std::string path_;
};

TEST_P(PrefixTest, ColdEqualsWarm) {
  const std::vector<Request> requests = family(1, 20);
  Options off = tiny_options();
  off.prefix_cache = "off";
  std::unique_ptr<Engine> cold = open_engine(path_, off);
  ASSERT_NE(cold, nullptr);
  const std::vector<Answer> expected = run_all(*cold, requests);
  EXPECT_EQ(cold->stats().cached_tokens, 0);
  struct Variant {
    std::string name;
    void (*change)(Options&);
  };
  const Variant variants[] = {
      {"as it comes", [](Options&) {}},
      {"page 1, chunk 7", [](Options& o) { o.page_size = 1, o.chunk_tokens = 7; }},
      {"page 64, alone", [](Options& o) { o.page_size = 64, o.max_running = 1; }},
      {"page 256, no overlap", [](Options& o) { o.page_size = 256, o.overlap = false; }},
      {"longest prefix, fifo", [](Options& o) { o.schedule = "longest_prefix", o.cache_eviction = "fifo"; }},
      {"paced chunks", [](Options& o) { o.target_itl_ms = 1; }},
  };
  for (const Variant& variant : variants) {
    Options changed = tiny_options();
    variant.change(changed);
    std::unique_ptr<Engine> engine = open_engine(path_, changed);
    ASSERT_NE(engine, nullptr) << variant.name;
    expect_same_tokens(run_all(*engine, requests), expected, variant.name + ", first time");
    const std::vector<Answer> again = run_all(*engine, requests);
    expect_same_tokens(again, expected, variant.name + ", second time");
    // Few pages of 256 tokens fit; what does not is evicted.
    EXPECT_GT(cached_of(again), changed.page_size == 256 ? 50 : 400) << variant.name;
  }
}

TEST_P(PrefixTest, RetractionAndEvictionChangeNothing) {
  const std::vector<Request> requests = family(2, 24);
  Options off = tiny_options();
  off.prefix_cache = "off";
  std::unique_ptr<Engine> cold = open_engine(path_, off);
  ASSERT_NE(cold, nullptr);
  const std::vector<Answer> expected = run_all(*cold, requests);
  Options tight = tiny_options();
  tight.page_size = 4;
  tight.kv_memory_bytes = 140 * kLlamaKvBytes * (GetParam() == "llama" ? 1 : 2);
  std::unique_ptr<Engine> engine = open_engine(path_, tight);
  ASSERT_NE(engine, nullptr);
  expect_same_tokens(run_all(*engine, requests), expected, "tight");
  expect_same_tokens(run_all(*engine, requests), expected, "tight, again");
  EXPECT_GT(engine->stats().pages_evicted, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixTest, ::testing::Values("llama", "gemma3", "gpt_oss", "deepseek_v3"),
                         [](const auto& family) { return family.param; });

class SharedPrompt : public PrefixTest {
 protected:
  struct Load {
    std::vector<Request> requests;
    std::int64_t prompt_tokens = 0;
  };
  static Load load() {
    std::mt19937_64 random(3);
    const Ids system = random_ids(random, 1500);
    Load load;
    for (int i = 0; i < 64; ++i) {
      load.requests.push_back(greedy_request(join(system, random_ids(random, 20)), 4));
      load.prompt_tokens += 1520;
    }
    return load;
  }
  std::int64_t computed(std::int32_t page, const Load& load) const {
    Options options;
    options.load_format = "dummy";
    options.max_context = 2048;
    options.max_running = 16;
    options.chunk_tokens = 512;
    options.page_size = page;
    options.kv_memory_bytes = 64 << 20;
    std::unique_ptr<Engine> engine = open_engine(path_, options);
    if (engine == nullptr) return -1;
    const std::vector<Answer> answers = run_all(*engine, load.requests);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.prompt_tokens + stats.cached_tokens, load.prompt_tokens);
    EXPECT_EQ(cached_of(answers), stats.cached_tokens);
    return stats.prompt_tokens;
  }
};

// 64 requests at once: the first one's prompt is computed, of the others only the questions.
TEST_P(SharedPrompt, IsComputedOnce) {
  const Load load = SharedPrompt::load();
  const std::int64_t page_1 = computed(1, load);
  const std::int64_t page_64 = computed(64, load);
  const std::int64_t page_256 = computed(256, load);
  std::printf("  of %lld prompt tokens computed: page 1 %lld, page 64 %lld, page 256 %lld\n",
              static_cast<long long>(load.prompt_tokens), static_cast<long long>(page_1),
              static_cast<long long>(page_64), static_cast<long long>(page_256));
  EXPECT_LE(20 * page_64, load.prompt_tokens);
  EXPECT_GE(100 * (load.prompt_tokens - page_256), 95 * (load.prompt_tokens - page_1));
  EXPECT_LE(page_1, 1520 + 63 * 20);  // some questions begin alike
}

INSTANTIATE_TEST_SUITE_P(Llama, SharedPrompt, ::testing::Values("llama"),
                         [](const auto& family) { return family.param; });

// Ten thousand requests in a pool for two or three of them: evictions, retractions and aborts at any moment.
// What is answered is what an undisturbed engine answers, and nothing stays behind.
TEST_P(SharedPrompt, AStormChangesNoToken) {
  constexpr int kRequests = 10000;
  constexpr std::size_t kKinds = 48;
  std::vector<Request> kinds = family(4, kKinds);
  for (Request& kind : kinds) kind.prompt.resize(std::min<std::size_t>(kind.prompt.size(), 40));
  Options roomy = tiny_options();
  roomy.prefix_cache = "off";
  std::unique_ptr<Engine> calm = open_engine(path_, roomy);
  ASSERT_NE(calm, nullptr);
  const std::vector<Answer> expected = run_all(*calm, kinds);
  Options tight = tiny_options();
  tight.page_size = 4;
  tight.max_running = 5;
  tight.kv_memory_bytes = 90 * kLlamaKvBytes;
  std::unique_ptr<Engine> engine = open_engine(path_, tight);
  ASSERT_NE(engine, nullptr);
  std::mt19937_64 random(9);
  std::map<RequestId, std::pair<std::size_t, Ids>> live;
  std::vector<Output> outputs;
  int submitted = 0;
  int finished = 0;
  while (submitted < kRequests || !live.empty()) {
    for (; submitted < kRequests && live.size() < 12; ++submitted) {
      const std::size_t kind = random() % kKinds;
      live[submit(*engine, kinds[kind])] = {kind, {}};
    }
    if (random() % 6 == 0) {
      auto victim = live.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random() % live.size()));
      engine->cancel(victim->first);
    }
    outputs.clear();
    ASSERT_TRUE(engine->step(outputs));
    for (const Output& output : outputs) {
      auto& [kind, tokens] = live.at(output.id);
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish == Finish::none) continue;
      const Ids& whole = expected[kind].tokens;
      ASSERT_LE(tokens.size(), whole.size());
      if (output.finish == Finish::cancelled) {
        ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.begin()));
      } else {
        ASSERT_EQ(tokens, whole) << "kind " << kind;
      }
      finished += output.finish == Finish::cancelled ? 0 : 1;
      live.erase(output.id);
    }
  }
  engine->step(outputs);
  const EngineStats stats = engine->stats();
  std::printf(
      "  %d finished, %d aborted, %lld steps, %lld retractions, %lld pages evicted, %lld tokens hit\n",
      finished, kRequests - finished, static_cast<long long>(stats.steps),
      static_cast<long long>(stats.retractions), static_cast<long long>(stats.pages_evicted),
      static_cast<long long>(stats.cached_tokens));
  EXPECT_EQ(engine->audit(), std::vector<std::string>{});
  EXPECT_EQ(stats.pages_in_use, stats.pages_cached);
  EXPECT_GT(finished, kRequests / 2);
  EXPECT_GT(stats.retractions, 100);
  EXPECT_GT(stats.pages_evicted, 10000);
  EXPECT_GT(stats.cached_tokens, 10000);
}

class Service : public PrefixTest {};

TEST_P(Service, SamplesOfAPromptShareIt) {
  std::mt19937_64 random(5);
  const Ids prompt = random_ids(random, 100);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 5; ++i) {
    requests.push_back(greedy_request(prompt, 8));
    requests.back().sampling.temperature = 1.0f;
    requests.back().sequence_index = i;
  }
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  const std::vector<Answer> answers = run_all(*engine, requests);
  // Who comes while the last few tokens of the prompt are in progress does not wait for them.
  for (std::size_t i = 1; i < answers.size(); ++i) EXPECT_GE(answers[i].last.cached_tokens, 100 - 24) << i;
  EXPECT_LE(engine->stats().prompt_tokens, 100 + 4 * 24);
  EXPECT_NE(answers[0].tokens, answers[1].tokens);
}

TEST_P(Service, SaltsKeepPrefixesApart) {
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  std::mt19937_64 random(6);
  Request request = greedy_request(random_ids(random, 60), 4);
  run_all(*engine, {request});
  request.cache_salt = "tenant";
  const Answer other = run_all(*engine, {request})[0];
  EXPECT_EQ(other.last.cached_tokens, 0);
  EXPECT_EQ(other.last.cache_miss, "other_namespace");
  const Answer again = run_all(*engine, {request})[0];
  EXPECT_EQ(again.last.cached_tokens, 59);
  EXPECT_EQ(again.last.cache_miss, "none");
  EXPECT_EQ(again.tokens, other.tokens);
}

// Whether a page is whole or not.
TEST_P(Service, SaysWhyAShortPromptMissed) {
  Options options = tiny_options();
  options.page_size = 64;
  for (const std::size_t tokens : {2, 60, 63, 64, 130}) {
    std::unique_ptr<Engine> engine = open_engine(path_, options);
    ASSERT_NE(engine, nullptr);
    std::mt19937_64 random(6);
    Request request = greedy_request(random_ids(random, tokens), 1);
    EXPECT_EQ(run_all(*engine, {request})[0].last.cache_miss, "no_prefix") << tokens;
    request.cache_salt = "tenant";
    EXPECT_EQ(run_all(*engine, {request})[0].last.cache_miss, "other_namespace") << tokens;
  }
  options.kv_memory_bytes = 0;
  for (std::int64_t memory = 1 << 16; options.kv_memory_bytes == 0; memory *= 2) {
    Options small = options;
    small.kv_memory_bytes = memory;  // the least power of two in which the longest prompt fits
    const auto engine = Engine::open(path_, small);
    if (engine.ok() && (*engine)->info().kv_capacity_tokens >= 256) options.kv_memory_bytes = memory;
  }
  std::unique_ptr<Engine> engine = open_engine(path_, options);
  ASSERT_NE(engine, nullptr);
  std::mt19937_64 random(7);
  const Request first = greedy_request(random_ids(random, 50), 4);
  run_all(*engine, {first});
  EXPECT_EQ(run_all(*engine, {first})[0].last.cached_tokens, 49);
  for (int i = 0; i < 20; ++i) run_all(*engine, {greedy_request(random_ids(random, 240), 4)});
  const Answer again = run_all(*engine, {first})[0];
  EXPECT_EQ(again.last.cached_tokens, 0);
  EXPECT_EQ(again.last.cache_miss.rfind("evicted at ", 0), 0u) << again.last.cache_miss;
}

// A router that hears the events and knows the formula finds a prompt's pages by its tokens.
TEST_P(Service, EventsNamePagesAndClearingForgetsThem) {
  std::unique_ptr<Engine> engine = open_engine(path_, tiny_options());
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->kv_events(0).events.empty());
  std::mt19937_64 random(8);
  Request request = greedy_request(random_ids(random, 40), 4);
  request.cache_salt = "tenant";
  run_all(*engine, {request});
  const KvEvents stored = engine->kv_events(0);
  EXPECT_EQ(stored.version, 1);
  EXPECT_EQ(stored.first, 0u);
  EXPECT_EQ(stored.next, 2u);  // of 43 tokens, two pages of 16
  ASSERT_EQ(stored.events.size(), 2u);
  std::uint64_t chain = 1;
  for (const std::string_view field : {"", "", "tenant", ""}) chain = kv::hash_field(chain, field);
  for (std::size_t page = 0; page < 2; ++page) {
    EXPECT_EQ(stored.events[page].kind, KvEvent::Kind::stored);
    EXPECT_EQ(stored.events[page].before, chain);
    chain = kv::hash_page(chain, std::span(request.prompt).subspan(16 * page, 16));
    EXPECT_EQ(stored.events[page].hash, chain);
  }
  EXPECT_TRUE(engine->kv_events(stored.next).events.empty());
  engine->clear_prefix_cache();
  EXPECT_EQ(engine->stats().pages_in_use, std::vector<std::int64_t>(1, 0));
  const KvEvents cleared = engine->kv_events(stored.next);
  ASSERT_EQ(cleared.events.size(), 3u);
  EXPECT_EQ(cleared.events[0].kind, KvEvent::Kind::removed);
  EXPECT_EQ(cleared.events[1].hash, stored.events[0].hash);
  EXPECT_EQ(cleared.events[2].kind, KvEvent::Kind::cleared);
  EXPECT_EQ(cleared.next, 5u);
  EXPECT_EQ(run_all(*engine, {request})[0].last.cached_tokens, 0);
  EXPECT_EQ(engine->audit(), std::vector<std::string>{});
}

TEST_P(Service, DeadlinesEndRequests) {
  Options one = tiny_options();
  one.max_running = 1;
  std::unique_ptr<Engine> engine = open_engine(path_, one);
  ASSERT_NE(engine, nullptr);
  Request late = greedy_request({1, 2, 3}, 100);
  late.deadline_s = 1e-6;
  const std::vector<Answer> answers = run_all(*engine, {greedy_request({4, 5, 6}, 20), late});
  EXPECT_EQ(answers[0].last.finish, Finish::length);
  EXPECT_EQ(answers[1].last.finish, Finish::deadline);
  EXPECT_LT(answers[1].tokens.size(), 100u);
}

TEST_P(Service, AFullQueueRefusesWithTheNumbers) {
  Options small = tiny_options();
  small.max_waiting = 2;
  std::unique_ptr<Engine> engine = open_engine(path_, small);
  ASSERT_NE(engine, nullptr);
  submit(*engine, greedy_request({1}, 2));
  submit(*engine, greedy_request({2}, 2));
  const auto third = engine->submit(greedy_request({3}, 2));
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, Code::no_resources);
  EXPECT_NE(third.error().message.find("the limit is 2"), std::string::npos) << third.error().message;
  drain(*engine);
}

INSTANTIATE_TEST_SUITE_P(Llama, Service, ::testing::Values("llama"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace quire::engine::testing
