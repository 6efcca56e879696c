// The executor on a GPU, and the memory that an engine there holds.
#include "engine/executor_case.h"
#include "engine/golden_case.h"

namespace quire::engine::testing {
namespace {

TEST(DeviceExecutor, RecordedStepsEqualEagerOnesBitForBit) {
  for (const char* model : {"llama", "qwen3", "deepseek_v3"}) expect_recorded_equals_eager("cuda", model);
}

TEST(DeviceExecutor, PaddingTouchesPageZeroOnly) {
  for (const char* model : {"llama", "deepseek_v3"}) expect_padding_touches_page_zero_only("cuda", model);
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
