// A real model under pressure: its answers with the prefix cache, small pages and large ones, chunks that end
// anywhere, and a pool in which sequences retract each other, against those of an engine with room for all.
#include <filesystem>
#include <random>

#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

constexpr std::int64_t kKvBytes = 30 * 2 * 3 * 64 * 2;  // per token: layers, K and V, heads, dims, bf16

// The least that retracts, evicts and hits as much as is asked for, where all takes several times as long.
#ifdef QUIRE_SANITIZED
constexpr std::uint64_t kRequests = 4;
#else
constexpr std::uint64_t kRequests = 10;
#endif

using Ids = std::vector<std::int32_t>;

Ids random_ids(std::mt19937_64& random, std::size_t count) {
  Ids ids(count);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(100 + random() % 40000);
  return ids;
}

// Prompts that fork from each other; every third answer is drawn with penalties.
std::vector<Request> family(std::uint64_t count) {
  std::mt19937_64 random(7);
  std::vector<Ids> roots = {random_ids(random, 60), random_ids(random, 25)};
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < count; ++i) {
    Ids prompt = roots[random() % roots.size()];
    prompt.resize(prompt.size() / 2 + random() % (prompt.size() / 2));
    const Ids rest = random_ids(random, 3 + random() % 15);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    roots.push_back(prompt);
    requests.push_back(greedy_request(prompt, 12 + static_cast<std::int32_t>(random() % 20)));
    if (i % 3 != 1) continue;
    requests.back().sampling.temperature = 0.9f;
    requests.back().sampling.repetition_penalty = 1.2f;
    requests.back().sampling.seed = 5;
    requests.back().sequence_index = i;
  }
  return requests;
}

struct Disturbed {
  std::int32_t page = 16;
  std::int32_t chunk = 256;
  std::int64_t pages = 0;  // of the pool
  bool overlap = true;
};

TEST(SmolLm2, AnswersTheSameUnderRetractionChunksAndPageSizes) {
  const std::string file = std::string(QUIRE_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(file)) FAIL() << "the model is not fetched: no " << file;
  const std::vector<Request> requests = family(kRequests);
  Options roomy;
  roomy.max_context = 128;
  roomy.max_running = 4;
  roomy.chunk_tokens = 256;
  roomy.page_size = 16;
  roomy.kv_memory_bytes = 2048 * kKvBytes;
  roomy.prefix_cache = "off";
  roomy.threads = 2;
  std::unique_ptr<Engine> calm = open_engine(file, roomy);
  ASSERT_NE(calm, nullptr);
  const std::vector<Answer> expected = run_all(*calm, requests);
  EXPECT_EQ(calm->stats().retractions, 0);
  calm.reset();
  std::int64_t retractions = 0;
  for (const Disturbed& d :
       {Disturbed{1, 7, 120}, Disturbed{5, 256, 24}, Disturbed{16, 24, 8}, Disturbed{64, 50, 3, false}}) {
    SCOPED_TRACE(::testing::Message() << "page " << d.page << " chunk " << d.chunk);
    Options tight = roomy;
    tight.page_size = d.page;
    tight.chunk_tokens = d.chunk;
    tight.kv_memory_bytes = d.pages * d.page * kKvBytes;
    tight.prefix_cache = "on";
    tight.overlap = d.overlap;
    std::unique_ptr<Engine> engine = open_engine(file, tight);
    ASSERT_NE(engine, nullptr);
    const std::vector<Answer> answers = run_all(*engine, requests);
    for (std::size_t i = 0; i < answers.size(); ++i)
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
    const EngineStats stats = engine->stats();
    std::printf("  page %d, chunk %d: %lld retractions, %lld pages evicted, %lld tokens hit\n", d.page,
                d.chunk, static_cast<long long>(stats.retractions),
                static_cast<long long>(stats.pages_evicted), static_cast<long long>(stats.cached_tokens));
    retractions += stats.retractions;
    EXPECT_GT(stats.pages_evicted, 0);
    EXPECT_GT(stats.cached_tokens, 0);
  }
  EXPECT_GT(retractions, 3);
}

}  // namespace
}  // namespace quire::engine::testing
