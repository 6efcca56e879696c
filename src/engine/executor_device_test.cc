// The executor on a GPU, and the memory that an engine there holds.
#include <algorithm>

#include "engine/executor_case.h"
#include "engine/golden_case.h"
#include "engine/parts.h"
#include "platform/cpu/isa.h"

namespace quire::engine::testing {
namespace {

TEST(DeviceExecutor, RecordedStepsEqualEagerOnesBitForBit) {
  for (const char* model : {"llama", "qwen3", "deepseek_v3"}) expect_recorded_equals_eager("cuda", model);
}

TEST(DeviceExecutor, RecordedMixedStepsEqualEagerOnesBitForBit) {
  for (const char* model : {"llama", "qwen3"}) expect_recorded_mix_equals_eager("cuda", model);
}

TEST(DeviceExecutor, PaddingTouchesPageZeroOnly) {
  for (const char* model : {"llama", "deepseek_v3"}) expect_padding_touches_page_zero_only("cuda", model);
}

// Small enough for a checker that slows every access a thousandfold, and meets every kind of kernel: a prompt
// of more rows than one product takes at once, a decode step, a draw; windows, sinks, experts, latent rows,
// and fp8 caches. What a prompt finds in the cache, in a whole page and in a part of one, is what was
// computed.
class DeviceSmoke : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(DeviceSmoke, PromptsColdAndWarm) {
  const auto& [model, kv_dtype] = GetParam();
  Options options;
  options.device = "cuda";
  options.graphs = false;
  options.kv_dtype = kv_dtype;
  options.max_running = 2;
  options.max_context = 64;
  options.chunk_tokens = 64;
  options.page_size = 32;
  options.kv_memory_bytes = 4 << 20;
  std::unique_ptr<Engine> engine = open_engine(quire::testing::golden_dir() + "/models/" + model, options);
  ASSERT_NE(engine, nullptr);
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 57; ++i) prompt.push_back((i * 37 + 11) % 250);
  const Request greedy = greedy_request(prompt, 2);
  Request drawn = greedy;
  drawn.sampling.temperature = 0.7f;
  drawn.sampling.top_k = 20;
  drawn.sampling.top_p = 0.9f;
  drawn.sampling.seed = 5;
  for (const Answer& cold : run_all(*engine, {drawn})) EXPECT_EQ(cold.tokens.size(), 2u);
  for (const Answer& warm : run_all(*engine, {greedy, drawn})) {
    EXPECT_EQ(warm.tokens.size(), 2u);
    EXPECT_EQ(warm.last.cached_tokens, 56) << "all but the prompt's last token";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceSmoke,
                         ::testing::Combine(::testing::Values("llama", "mistral_swa", "qwen3", "gemma3",
                                                              "gpt_oss", "deepseek_v3"),
                                            ::testing::Values("bf16", "fp8_e4m3")),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::string(std::get<1>(tested.param));
                         });

// Random weights of an 8B model take one thread half a minute.
TEST(DeviceLoad, AllProcessorsOfTheHostConvertWeights) {
  Options options;
  options.device = "cuda";
  const auto surveyed = survey(quire::testing::golden_dir() + "/models/llama", options);
  ASSERT_TRUE(surveyed.ok()) << surveyed.error().message;
  const std::string wanted = std::to_string(platform::cpu::usable_threads()) + " threads convert weights";
  const auto says = [&](const std::string& line) { return line.starts_with(wanted); };
  EXPECT_TRUE(std::ranges::any_of(surveyed->spec.trace, says)) << wanted;
}

// What the driver says is used beyond the context, against the ledger.
TEST(DeviceMemory, LedgerSumsToWhatTheDriverSays) {
  auto opened = platform::open_device("cuda", platform::ThreadPlan{});
  ASSERT_TRUE(opened.ok());
  const std::unique_ptr<platform::Device> device = std::move(*opened);
  for (const std::int64_t kv : {std::int64_t{2} << 30, std::int64_t{8} << 30}) {
    const std::int64_t before = device->memory().available_bytes;
    Options options;
    options.device = "cuda";
    options.kv_memory_bytes = kv;
    options.max_context = 1024;
    const std::string path = quire::testing::golden_dir() + "/models/llama";
    std::unique_ptr<Engine> engine = open_engine(path, options);
    ASSERT_NE(engine, nullptr);
    run_all(*engine, {greedy_request({1, 2, 3, 4, 5}, 16)});
    const std::int64_t held = before - device->memory().available_bytes;
    std::int64_t listed = 0;
    for (const LedgerLine& line : engine->info().ledger) listed += line.host || line.mapped ? 0 : line.bytes;
    std::printf("  ledger %.1f MB, driver %.1f MB\n", static_cast<double>(listed) / 1e6,
                static_cast<double>(held) / 1e6);
    EXPECT_LE(std::abs(held - listed), listed / 50);
    engine.reset();
    EXPECT_LE(before - device->memory().available_bytes, 64 << 20) << "what an engine leaves behind";
  }
}

TEST(DeviceMemory, TooLittleIsTheLedgersMessage) {
  Options options;
  options.device = "cuda";
  options.kv_memory_bytes = std::int64_t{1} << 40;
  const auto engine = Engine::open(quire::testing::golden_dir() + "/models/llama", options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, Code::no_resources);
  for (const char* text : {"this run needs 1024 GiB", "KV arena", "use a smaller --kv-memory"})
    EXPECT_NE(engine.error().message.find(text), std::string::npos) << engine.error().message;
}

}  // namespace
}  // namespace quire::engine::testing
