// Memory: a steady decode step allocates nothing, windows hold a bounded number of pages, and the ledger is
// true.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "engine/golden_case.h"
#include "engine/ledger.h"
#include "engine/parts.h"

// Sanitizers have an allocator of their own, also for shared libraries, and hold memory of their own: what
// counts allocations or bytes of the process is no part of their builds.
#ifndef QUIRE_SANITIZED

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Every C++ allocation of this program, on any thread.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(bytes == 0 ? 1 : bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }
#endif

namespace quire::engine::testing {
namespace {

std::string gemma() {
  const std::string root = quire::testing::golden_dir();
  return root.empty() ? "" : root + "/models/gemma3";
}

// Builds that check (kPoison) audit their books after every step.
#if !defined(QUIRE_SANITIZED) && defined(__OPTIMIZE__)
TEST(Memory, SteadyDecodeAllocatesNothing) {
  static_assert(!kPoison);
  const std::string path = gemma();
  if (path.empty()) FAIL() << "no golden data";
  for (const bool overlap : {true, false}) {
    Options options;
    options.max_context = 400;
    options.max_running = 4;
    options.page_size = 8;
    options.overlap = overlap;
    options.kv_memory_bytes = 8 << 20;
    std::unique_ptr<Engine> engine = open_engine(path, options);
    ASSERT_NE(engine, nullptr);
    for (int i = 0; i < 3; ++i) {
      Request request = greedy_request({1, 2, 3 + i}, 300);
      request.sampling.temperature = i == 1 ? 0.8f : 0.0f;
      request.logprobs = i == 2 ? 5 : -1;
      submit(*engine, request);
    }
    std::vector<Output> outputs;
    for (int s = 0; s < 20; ++s) {
      engine->recycle(outputs);
      engine->step(outputs);
    }
    const std::int64_t before = allocations.load();
    std::size_t tokens = 0;
    for (int s = 0; s < 200; ++s) {
      engine->recycle(outputs);
      engine->step(outputs);
      tokens += outputs.size();
    }
    EXPECT_EQ(allocations.load() - before, 0) << (overlap ? "overlap" : "no overlap");
    EXPECT_EQ(tokens, 600u);
    drain(*engine);
  }
}
#endif

// A model of gemma's two groups with a 32,768-token limit reads 32,000 tokens with random weights.
TEST(Memory, WindowGroupHoldsWindowAndChunk) {
  const std::string path = gemma();
  if (path.empty()) FAIL() << "no golden data";
  Options options;
  options.load_format = "dummy";
  options.max_running = 1;
  options.prefix_cache = "off";  // it keeps what requests leave behind
  options.page_size = 16;
  options.chunk_tokens = 512;
  options.kv_memory_bytes = 48 << 20;
  std::unique_ptr<Engine> engine = open_engine(path, options);
  ASSERT_NE(engine, nullptr);
  ASSERT_EQ(engine->info().max_context, 32768);
  std::vector<std::int32_t> prompt(32000);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 31 % 259);
  EXPECT_EQ(run_all(*engine, {greedy_request(prompt, 8)})[0].tokens.size(), 8u);
  const EngineStats stats = engine->stats();
  const std::int64_t window = 48;
  const std::int64_t most = (window + options.chunk_tokens + options.page_size - 1) / options.page_size + 2;
  ASSERT_EQ(stats.pages_peak.size(), 2u);
  const std::int64_t fewer = std::min(stats.pages_peak[0], stats.pages_peak[1]);
  const std::int64_t more = std::max(stats.pages_peak[0], stats.pages_peak[1]);
  EXPECT_LE(fewer, most);
  EXPECT_GE(more, 32000 / options.page_size);
}

#ifndef QUIRE_SANITIZED

// A line of /proc/self/smaps_rollup in bytes; -1: there is none.
std::int64_t smaps(const std::string& name) {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    std::int64_t kilobytes = 0;
    if (word == name + ":" && file >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

// Before any test: what others that ran in this process left behind is no engine's.
const std::int64_t kAtStart = smaps("Private_Dirty");

// What the process holds: memory of its own, and the pages of `file` that it has mapped and touched.
std::int64_t held_bytes(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool of_file = false;
  std::int64_t mapped = 0;
  while (std::getline(maps, line)) {
    const bool opens_mapping = line.find('-') < line.find(' ');
    if (opens_mapping) of_file = !file.empty() && line.ends_with(file);
    if (of_file && line.starts_with("Rss:")) mapped += std::atoll(line.c_str() + 4) * 1024;
  }
  return smaps("Private_Dirty") + mapped;
}

// Fills the whole pool and compares. `file`: where mapped weights come from, or empty.
void expect_true_ledger(const std::string& path, const std::string& file, const Options& options) {
  malloc_trim(0);
  const std::int64_t left_by_others = std::max<std::int64_t>(0, smaps("Private_Dirty") - kAtStart);
  std::unique_ptr<Engine> engine = open_engine(path, options);
  ASSERT_NE(engine, nullptr);
  std::int64_t sum = 0;
  for (const LedgerLine& line : engine->info().ledger) sum += line.bytes;
  const auto prompt = static_cast<std::size_t>(options.max_context / 3);
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < options.max_running; ++i)
    requests.push_back(greedy_request(std::vector<std::int32_t>(prompt, 1 + i), 0));
  run_all(*engine, requests);
  const std::int64_t all_pages = std::int64_t{options.max_running} * options.max_context / options.page_size;
  ASSERT_EQ(engine->stats().pages_peak, (std::vector<std::int64_t>{all_pages})) << "the pool was not filled";
  malloc_trim(0);  // what other tests left is no engine's
  const auto held = static_cast<double>(held_bytes(file) - left_by_others);
  std::printf("  ledger %.2f MB, held %.2f MB\n", 1e-6 * static_cast<double>(sum), 1e-6 * held);
  EXPECT_NEAR(static_cast<double>(sum), held, 0.03 * held) << to_string(engine->info().ledger);
}

TEST(Memory, TheLedgerIsWhatTheProcessHolds) {
  ASSERT_GE(smaps("Private_Dirty"), 0) << "no /proc/self/smaps_rollup";
  // Narrow, so that it computes fast, with wide keys: 64 KiB of KV a token.
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("quire_ledger_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 4096, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": false})";
  Options options;
  options.load_format = "dummy";
  options.kv_dtype = "f32";
  options.max_running = 16;
  options.max_context = 128;
  options.page_size = 16;
  options.threads = 2;
  expect_true_ledger(folder.string(), "", options);
  std::filesystem::remove_all(folder);
}

TEST(Memory, TheLedgerIsWhatTheProcessHoldsWithMappedWeights) {
  const std::string name = "SmolLM2-135M-Instruct.Q4_1.gguf";
  const std::string file = std::string(QUIRE_SOURCE_DIR) + "/.deps/models/" + name;
  if (!std::filesystem::exists(file)) FAIL() << "the model is not fetched: no " << file;
  ASSERT_GE(smaps("Private_Dirty"), 0) << "no /proc/self/smaps_rollup";
  Options options;
  options.kv_dtype = "f32";
  options.max_running = 16;
  options.max_context = 128;
  options.page_size = 16;
  options.threads = 2;
  expect_true_ledger(file, name, options);
}

// Builds that poison write all of the arena at the start.
#ifdef __OPTIMIZE__
// What of this process's mappings of at least `bytes` is memory of its own.
std::int64_t private_in_large_mappings(std::int64_t bytes) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool large = false;
  std::int64_t sum = 0;
  while (std::getline(maps, line)) {
    const std::int64_t value = std::atoll(line.c_str() + line.find(':') + 1) * 1024;
    if (line.starts_with("Size:")) large = value >= bytes;
    if (large && line.starts_with("Anonymous:")) sum += value;
  }
  return sum;
}

TEST(Memory, TheArenaBecomesPrivateWithUse) {
  static_assert(!kPoison);
  const std::string path = gemma();
  if (path.empty()) FAIL() << "no golden data";
  Options options;
  options.load_format = "dummy";
  options.max_running = 1;
  options.prefix_cache = "off";  // it keeps what requests leave behind
  options.page_size = 16;
  options.max_context = 8192;
  options.kv_memory_bytes = 64 << 20;
  const std::int64_t others = private_in_large_mappings(60 << 20);
  std::unique_ptr<Engine> engine = open_engine(path, options);
  ASSERT_NE(engine, nullptr);
  std::int64_t line = 0;
  for (const LedgerLine& l : engine->info().ledger)
    if (l.owner == "KV arena") line = l.bytes;
  EXPECT_LE(line, 64 << 20);
  EXPECT_GT(line, 60 << 20);
  // In the arena's own mapping, which is the engine's only one of this size: what the rest of the process
  // holds, and when its allocator gives some back, does not matter. Recording has touched the padding page; a
  // page of the system may be a huge one.
  EXPECT_LE(private_in_large_mappings(60 << 20) - others, 4 << 20);
  run_all(*engine, {greedy_request(std::vector<std::int32_t>(8000, 1), 8)});
  const std::int64_t used = private_in_large_mappings(60 << 20) - others;
  EXPECT_GE(used, 8000 * 2 * 64 * 2);
  EXPECT_LT(used, 20 << 20);
}
#endif

#endif

TEST(Load, AsManyThreadsConvertWeightsAsWereAskedFor) {
  Options options;
  options.threads = 3;
  const auto surveyed = survey(quire::testing::golden_dir() + "/models/llama", options);
  ASSERT_TRUE(surveyed.ok()) << surveyed.error().message;
  const std::vector<std::string>& trace = surveyed->spec.trace;
  EXPECT_NE(std::ranges::find(trace, "3 threads convert weights: asked for"), trace.end());
}

}  // namespace
}  // namespace quire::engine::testing
