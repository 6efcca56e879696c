// `bench step` and `bench offline`: figures of what is named, or a refusal in the command's own words.
#include <gtest/gtest.h>

#include "base/result.h"
#include "engine/bench_needs.h"
#include "engine/bench_offline.h"
#include "engine/bench_step.h"
#include "engine/golden_case.h"

namespace quire::engine {
namespace {

std::string llama() { return quire::testing::golden_dir() + "/models/llama"; }  // its context is 2048

BenchStepRequest steps_of(std::vector<std::int32_t> batches, std::vector<std::int32_t> contexts) {
  BenchStepRequest request;
  request.batches = std::move(batches);
  request.contexts = std::move(contexts);
  request.steps = 8;
  return request;
}

Options small() {
  Options options;
  options.threads = 1;
  return options;
}

std::string why_not(const BenchStepRequest& request, const Options& options, Code code) {
  const auto cells = bench_step(llama(), options, request);
  if (cells.ok()) return "measured";
  EXPECT_EQ(cells.error().code, code) << cells.error().message;
  return cells.error().message;
}

// The number behind `flag` in the message.
std::int64_t named(const std::string& message, const std::string& flag) {
  const std::size_t at = message.find(flag + " ", message.find("use "));
  EXPECT_NE(at, std::string::npos) << flag << " in: " << message;
  return at == std::string::npos ? 1 : std::atoll(message.c_str() + at + flag.size() + 1);
}

TEST(BenchStep, ABatchThatTheKvMemoryDoesNotHoldIsRefusedAndTheNearestOneIsMeasured) {
  Options options = small();
  options.kv_memory_bytes = 458752;
  const std::string message = why_not(steps_of({64}, {64}), options, Code::no_resources);
  EXPECT_NE(message.find("a batch of 64"), std::string::npos) << message;
  EXPECT_NE(message.find("--kv-memory is 448 KiB"), std::string::npos) << message;

  const auto batch = static_cast<std::int32_t>(named(message, "--batch"));
  ASSERT_GE(batch, 1);
  auto cells = bench_step(llama(), options, steps_of({batch}, {64}));
  ASSERT_TRUE(cells.ok()) << cells.error().message;
  EXPECT_EQ(cells->front().batch, batch);
  EXPECT_NE(why_not(steps_of({batch + 1}, {64}), options, Code::no_resources), "measured");

  options.kv_memory_bytes = named(message, "--kv-memory");
  cells = bench_step(llama(), options, steps_of({64}, {64}));
  ASSERT_TRUE(cells.ok()) << cells.error().message;
}

// Computes the prompts as a scheduler does: in order, `chunk` tokens a step.
TEST(BenchStep, AllSequencesHaveTheContextWhenTheLastOneBegins) {
  const BenchStepRequest request = steps_of({1}, {1});
  for (const std::int64_t batch : {1, 2, 9, 64, 1000})
    for (const std::int64_t context : {2, 17, 64, 1000, 6000})
      for (const std::int64_t chunk : {1, 40, 512, 2048}) {
        const std::vector<CellSequence> sequences = cell_sequences(request, batch, context, chunk);
        ASSERT_EQ(sequences.size(), static_cast<std::size_t>(batch));
        std::int64_t all = 0;
        for (const CellSequence& one : sequences) all += one.prompt;
        const std::int64_t last_step = (all + chunk - 1) / chunk;
        std::int64_t before = 0;
        for (const CellSequence& one : sequences) {
          before += one.prompt;
          const std::int64_t decoded = last_step - (before + chunk - 1) / chunk;
          const std::int64_t cached = one.prompt + decoded + 1;  // with the row of the step that follows
          EXPECT_GE(cached, context - 1) << batch << " " << context << " " << chunk;
          EXPECT_LE(cached, one.prompt > 1 ? context : decoded + 2)
              << batch << " " << context << " " << chunk;
          EXPECT_GE(one.answer, decoded + kWarmSteps + request.steps + 1);
        }
        EXPECT_EQ(sequences.back().prompt, context - 1);
      }
}

// The prompts of these take far more steps than are measured, and the first sequences decode meanwhile.
TEST(BenchStep, EveryStepHasTheWholeBatch) {
  for (const std::int32_t chunk_tokens : {16, 512})
    for (const bool overlap : {true, false}) {
      Options options = small();
      options.chunk_tokens = chunk_tokens;
      options.overlap = overlap;
      const auto cells = bench_step(llama(), options, steps_of({1, 3, 16}, {2, 130, 700}));
      ASSERT_TRUE(cells.ok()) << cells.error().message;
      EXPECT_EQ(cells->size(), 9u);
    }
}

TEST(BenchStep, TheModelsContextIsTheFirstFact) {
  for (const std::int32_t context : {2048, 999999999}) {
    const std::string message = why_not(steps_of({1, 4}, {16, context}), small(), Code::bad_input);
    EXPECT_NE(message.find("the model's context is 2048"), std::string::npos) << message;
    const auto most = static_cast<std::int32_t>(named(message, "--context"));
    const auto cells = bench_step(llama(), small(), steps_of({1, 4}, {16, most}));
    EXPECT_TRUE(cells.ok()) << cells.error().message;
    EXPECT_NE(why_not(steps_of({1, 4}, {16, most + 1}), small(), Code::bad_input), "measured");
  }
  BenchStepRequest many = steps_of({1}, {64});
  many.steps = 4096;
  many.steps = static_cast<std::int32_t>(named(why_not(many, small(), Code::bad_input), "--steps"));
  ++many.steps;
  EXPECT_NE(why_not(many, small(), Code::bad_input), "measured");
}

TEST(BenchStep, AChunkThatTheKvMemoryDoesNotHoldIsRefusedAndTheNearestOneIsMeasured) {
  Options options = small();
  options.kv_memory_bytes = 393216;
  BenchStepRequest request = steps_of({1}, {64});
  request.chunks = {512};
  const std::string message = why_not(request, options, Code::no_resources);
  EXPECT_NE(message.find("a chunk of 512 behind 0 tokens needs KV for 512"), std::string::npos) << message;
  const std::int64_t memory = named(message, "--kv-memory");
  request.chunks = {static_cast<std::int32_t>(named(message, "--chunk"))};
  EXPECT_EQ(why_not(request, options, Code::no_resources), "measured");
  request.chunks = {512};
  options.kv_memory_bytes = memory;
  EXPECT_EQ(why_not(request, options, Code::no_resources), "measured");
}

TEST(BenchStep, AdviceCanBeFollowed) {
  EXPECT_EQ(why_not(steps_of({4096}, {64}), small(), Code::bad_input), "--batch 4096 is outside 1 to 1024");
  BenchStepRequest chunks = steps_of({1}, {64});
  chunks.chunks = {999999999};
  EXPECT_EQ(why_not(chunks, small(), Code::bad_input), "--chunk 999999999 is outside 1 to 65536");
  chunks.chunks = {16, 2048};
  const std::string message = why_not(chunks, small(), Code::bad_input);
  chunks.chunks = {16, static_cast<std::int32_t>(named(message, "--chunk"))};
  const auto cells = bench_step(llama(), small(), chunks);
  ASSERT_TRUE(cells.ok()) << cells.error().message;
  EXPECT_GT(cells->back().ms, 0.0);

  Options options = small();
  options.max_running = 2;
  const std::string over = why_not(steps_of({8}, {64}), options, Code::bad_input);
  EXPECT_EQ(named(over, "--batch"), 2);
  EXPECT_EQ(named(over, "--max-running"), 8);
}

std::string why_not(const BenchOfflineRequest& request, const Options& options, Code code) {
  const auto report = bench_offline(llama(), options, request);
  if (report.ok()) return "measured";
  EXPECT_EQ(report.error().code, code) << report.error().message;
  EXPECT_EQ(report.error().message.find("--max-tokens"), std::string::npos) << report.error().message;
  return report.error().message;
}

TEST(BenchOffline, NamesItsOwnFlagsAndTheyDo) {
  BenchOfflineRequest load{.requests = 2, .prompt_tokens = 2048, .output_tokens = 1};
  const std::string message = why_not(load, small(), Code::bad_input);
  EXPECT_NE(message.find("the model's context is 2048: use --prompt 2047 or less"), std::string::npos)
      << message;
  load.prompt_tokens = 2047;
  EXPECT_EQ(why_not(load, small(), Code::bad_input), "measured");

  Options options = small();
  options.kv_memory_bytes = 262144;
  load = {.requests = 2, .prompt_tokens = 20, .output_tokens = 900};
  const std::string little = why_not(load, options, Code::no_resources);
  const auto output = static_cast<std::int32_t>(named(little, "--output"));
  load.output_tokens = output + 1;
  EXPECT_NE(why_not(load, options, Code::no_resources), "measured");
  load.output_tokens = output;
  EXPECT_EQ(why_not(load, options, Code::no_resources), "measured");
  load.output_tokens = 900;
  options.kv_memory_bytes = named(little, "--kv-memory");
  EXPECT_EQ(why_not(load, options, Code::no_resources), "measured");
}

}  // namespace
}  // namespace quire::engine
