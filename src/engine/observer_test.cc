// Records, replays and shadows of whole engines: watching changes no token, a record replays without a
// difference, and a fault planted in a backend is named by its step, layer, row, head and keys.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "attention/merge.h"
#include "engine/engine_impl.h"
#include "engine/golden_case.h"
#include "record/replay/replay.h"

namespace quire::engine::testing {
namespace {

namespace fs = std::filesystem;
using attention::Args;
using attention::PlanBuffer;
using attention::StepShape;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "quire-observer-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Options small_options() {
  Options options;
  options.max_context = 128;
  options.max_running = 4;
  options.chunk_tokens = 24;
  options.page_size = 8;
  options.kv_memory_bytes = 4 << 20;
  options.threads = 2;
  return options;
}

std::vector<Request> some_requests(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<std::int32_t> prompt;
    for (int t = 0; t < 5 + i * 13 % 47; ++t) prompt.push_back((i * 31 + t * 7) % 200);
    requests.push_back(greedy_request(prompt, 6 + i * 5 % 11));
    requests.back().sampling.seed = 7;
    requests.back().sampling.temperature = i % 3 == 1 ? 0.8f : 0.0f;
  }
  return requests;
}

std::vector<std::vector<std::int32_t>> tokens_of(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Answer& answer : answers) tokens.push_back(answer.tokens);
  return tokens;
}

record::ReplayReport replay_of(const std::string& folder, const record::ReplayOptions& options = {}) {
  auto reader = record::FileReader::open(folder);
  EXPECT_TRUE(reader.ok()) << reader.error().message;
  if (!reader.ok()) return {};
  auto report = record::replay(*reader, options);
  EXPECT_TRUE(report.ok()) << report.error().message;
  return report.ok() ? *report : record::ReplayReport{};
}

std::string told(const record::ReplayReport& report) {
  if (!report.first) return "no difference";
  const record::Difference& d = *report.first;
  return "step " + std::to_string(d.step) + " " + d.call + " layer " + std::to_string(d.layer) + " row " +
         std::to_string(d.row) + " head " + std::to_string(d.head) + " error " + std::to_string(d.error) +
         " gate " + std::to_string(d.gate) + " " + d.keys_note;
}

class ObserverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = quire::testing::golden_dir();
    if (root_.empty()) FAIL() << "no golden data";
  }
  std::string model(const std::string& name) const { return root_ + "/models/" + name; }
  std::string root_;
};

struct Kind {
  std::string model;
  std::string kv_dtype = "auto";
  std::string deterministic;
};

// Every shape of call that the models make: full and window groups, sinks, latent in both forms, scales.
TEST_F(ObserverTest, ARecordChangesNothingAndReplaysWithoutADifference) {
  const Kind kinds[] = {{"llama"},
                        {"llama", "fp8_e4m3"},
                        {"gemma3"},
                        {"gpt_oss", "f16"},
                        {"deepseek_v3", "auto", "run_to_run"},
                        {"deepseek_v3", "auto", "schedule_invariant"}};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.model + " " + kind.kv_dtype + " " + kind.deterministic);
    Options options = small_options();
    options.kv_dtype = kind.kv_dtype;
    options.deterministic = kind.deterministic;
    std::vector<std::vector<std::int32_t>> expected;
    {
      auto engine = open_engine(model(kind.model), options);
      ASSERT_NE(engine, nullptr);
      expected = tokens_of(run_all(*engine, some_requests(5)));
    }
    const Folder folder;
    options.record = folder.path();
    EngineStats stats;
    {
      auto engine = open_engine(model(kind.model), options);
      ASSERT_NE(engine, nullptr);
      EXPECT_EQ(tokens_of(run_all(*engine, some_requests(5))), expected);
      stats = engine->stats();
    }
    EXPECT_EQ(stats.record.steps, stats.steps);
    EXPECT_EQ(stats.record.ended, "");
    const record::ReplayReport against_oracle = replay_of(folder.path());
    EXPECT_EQ(against_oracle.steps, stats.steps);
    EXPECT_GT(against_oracle.compared, stats.steps);
    EXPECT_EQ(against_oracle.skipped, 0);
    EXPECT_FALSE(against_oracle.first) << told(against_oracle);
    // The same row again: the same bits.
    const record::ReplayReport again = replay_of(folder.path(), {.backend = "cpu", .against = "recorded"});
    EXPECT_FALSE(again.first) << told(again);
    EXPECT_EQ(again.compared, again.calls);
  }
}

// Pages that change hands, chunks, retraction: what a page holds is what its present owner wrote.
TEST_F(ObserverTest, PagesThatAreUsedAgainAreRecordedAgain) {
  Options options = small_options();
  options.kv_memory_bytes = 100 << 10;  // some 100 tokens: sequences wait for each other's pages
  const Folder folder;
  options.record = folder.path();
  {
    auto engine = open_engine(model("llama"), options);
    ASSERT_NE(engine, nullptr);
    run_all(*engine, some_requests(24));
  }
  const record::ReplayReport report = replay_of(folder.path());
  EXPECT_FALSE(report.first) << told(report);
}

TEST_F(ObserverTest, ARecordMayBeginLateAndHoldFewLayers) {
  Options options = small_options();
  const Folder folder;
  options.record = folder.path();
  options.record_steps = "4-6,9-";
  options.record_layers = "1";
  EngineStats stats;
  {
    auto engine = open_engine(model("llama"), options);
    ASSERT_NE(engine, nullptr);
    run_all(*engine, some_requests(6));
    stats = engine->stats();
  }
  EXPECT_EQ(stats.record.steps, stats.steps - 6);
  EXPECT_GT(stats.replayed_steps, 0);  // of those that were not recorded
  const record::ReplayReport report = replay_of(folder.path());
  EXPECT_FALSE(report.first) << told(report);
  EXPECT_GT(report.compared, 0);
}

TEST_F(ObserverTest, TheLimitEndsTheRecordAndNotTheRun) {
  Options options = small_options();
  std::vector<std::vector<std::int32_t>> expected;
  {
    auto engine = open_engine(model("llama"), options);
    ASSERT_NE(engine, nullptr);
    expected = tokens_of(run_all(*engine, some_requests(5)));
  }
  const Folder folder;
  options.record = folder.path();
  options.record_limit_bytes = 900 << 10;
  auto engine = open_engine(model("llama"), options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(tokens_of(run_all(*engine, some_requests(5))), expected);
  const EngineStats stats = engine->stats();
  EXPECT_NE(stats.record.ended.find("limit"), std::string::npos) << stats.record.ended;
  EXPECT_GT(stats.record.steps, 0);
  EXPECT_LT(stats.record.steps, stats.steps);
  EXPECT_LE(stats.record.bytes, options.record_limit_bytes);
  EXPECT_GT(stats.replayed_steps, 0);  // graphs are in use again
  const record::ReplayReport report = replay_of(folder.path());
  EXPECT_EQ(report.steps, stats.record.steps);
  EXPECT_FALSE(report.first) << told(report);
}

TEST_F(ObserverTest, WhatCannotBeIsRefusedWhenTheEngineOpens) {
  const auto refusal = [&](auto change) {
    Options options = small_options();
    change(options);
    const auto engine = Engine::open(model("llama"), options);
    return engine.ok() ? std::string() : engine.error().message;
  };
  const Folder folder;
  const auto recording = [&](const char* layers, const char* steps) {
    return refusal([&](Options& o) {
      o.record = folder.path();
      o.record_layers = layers;
      o.record_steps = steps;
    });
  };
  EXPECT_NE(recording("1-0", "").find("--record-layers"), std::string::npos);
  EXPECT_NE(recording("", "x").find("--record-steps"), std::string::npos);
  EXPECT_NE(recording("99", "").find("there is no layer 99, the model has 0 to 1"), std::string::npos);
  EXPECT_NE(recording("0-2", "").find("there is no layer 2"), std::string::npos);
  EXPECT_NE(recording("", "none").find("stores nothing"), std::string::npos);
  EXPECT_NE(refusal([&](Options& o) {
              o.record = folder.path();
              o.record_limit_bytes = 1;
            }).find("or more"),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(recording("0-", "all"), "");  // no step ran
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_NE(refusal([](Options& o) { o.record_layers = "0"; }).find("--record DIR"), std::string::npos);
  EXPECT_NE(refusal([](Options& o) { o.shadow = "referense:0.5"; }).find("reference"), std::string::npos);
  EXPECT_NE(refusal([](Options& o) { o.shadow = "reference:2"; }).find("FRACTION"), std::string::npos);
}

// ---- a planted fault -----------------------------------------------------------------------------------

// The row cpu, except that in one call one head of the rows from `row` on leaves out keys [begin, end).
struct Skip {
  std::int64_t run = -1;  // of the decode calls, counted over the life of the engine; -1: every one
  std::int32_t row = 0;
  std::int32_t head = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};
Skip planted;
std::int64_t decode_runs = 0;

const attention::Backend& cpu_row() {
  return *attention::find_backend(attention::backends(platform::Kind::cpu), "cpu");
}

class Skipping final : public attention::Attention {
 public:
  Skipping(const attention::Problem& problem, platform::Device& device) : problem_(problem) {
    inner_ = cpu_row().make(problem, device);
    attention::Problem part = problem;
    part.features |= attention::kPart | attention::kLse;
    part_ = cpu_row().make(part, device);
  }
  std::int64_t workspace_bytes(const attention::Limits& limits) const override {
    return std::max(inner_->workspace_bytes(limits), part_->workspace_bytes(limits));
  }
  void plan(const StepShape& shape, PlanBuffer buffer, platform::Stream& stream) override {
    inner_->plan(shape, buffer, stream);
  }
  void run(const StepShape& shape, const Args& args, PlanBuffer buffer, platform::Stream& stream) override {
    inner_->run(shape, args, buffer, stream);
    if (problem_.phase != attention::Phase::decode) return;
    const bool here = planted.run == -1 || planted.run == decode_runs;
    ++decode_runs;
    if (!here || shape.total_q <= planted.row) return;
    stream.synchronize();
    const std::int64_t width = std::int64_t{problem_.q_heads} * problem_.v_dim;
    std::vector<float> out[2], lse[2];
    attention::MergeArgs merge;
    for (int side = 0; side < 2; ++side) {
      out[side].resize(static_cast<std::size_t>(shape.total_q * width));
      lse[side].resize(static_cast<std::size_t>(shape.total_q * problem_.q_heads));
      run_side(side, shape, args, buffer, stream, out[side].data(), lse[side].data());
      merge.parts[side] = {out[side].data(), lse[side].data()};
    }
    merge.part_count = 2;
    merge.rows = shape.total_q;
    merge.heads = problem_.q_heads;
    merge.dim = problem_.v_dim;
    merge.out = out[0].data();
    merge.out_row_stride = width;
    attention::merge(merge, stream);
    stream.synchronize();
    for (std::int32_t row = planted.row; row < shape.total_q; ++row)
      std::copy_n(
          out[0].data() + row * width + planted.head * problem_.v_dim, problem_.v_dim,
          static_cast<float*>(args.out) + row * args.out_row_stride + planted.head * args.out_head_stride);
    inner_->plan(shape, buffer, stream);
  }

 private:
  void run_side(int side, StepShape shape, Args args, PlanBuffer buffer, platform::Stream& stream, float* out,
                float* lse) {
    std::vector<std::int32_t> begin, end;
    for (std::int32_t i = 0; i < shape.batch; ++i) {
      const std::int32_t first = shape.part_begin != nullptr ? shape.part_begin[i] : 0;
      const std::int32_t last = shape.part_end != nullptr ? shape.part_end[i] : shape.kv_lens[i];
      begin.push_back(side == 0 ? first : std::max(first, planted.end));
      end.push_back(side == 0 ? std::min(last, planted.begin) : last);
    }
    shape.part_begin = begin.data();
    shape.part_end = end.data();
    args.out = out;
    args.out_head_stride = problem_.v_dim;
    args.out_row_stride = std::int64_t{problem_.q_heads} * problem_.v_dim;
    args.lse = lse;
    part_->plan(shape, buffer, stream);
    part_->run(shape, args, buffer, stream);
    stream.synchronize();
  }

  attention::Problem problem_;
  std::unique_ptr<attention::Attention> inner_, part_;
};

std::vector<attention::Backend> faulty_table() {
  const std::span<const attention::Backend> whole = attention::backends(platform::Kind::cpu);
  std::vector<attention::Backend> table(whole.begin(), whole.end());
  for (attention::Backend& row : table)
    if (row.name == "cpu")
      row.make = [](const attention::Problem& problem,
                    platform::Device& device) -> std::unique_ptr<attention::Attention> {
        return std::make_unique<Skipping>(problem, device);
      };
  return table;
}

std::vector<record::TableRow> replay_table(const std::vector<attention::Backend>& table) {
  std::vector<record::TableRow> rows;
  for (const attention::Backend& row : table) rows.push_back({row, platform::Kind::cpu});
  return rows;
}

class PlantedFaultTest : public ObserverTest {
 protected:
  // Two prompts in one chunk (step 0), then decode steps of two rows.
  void record_run(const std::string& folder) {
    Options options = small_options();
    options.chunk_tokens = 96;
    options.graphs = false;  // their recording would count as runs
    options.record = folder;
    decode_runs = 0;
    auto engine = EngineImpl::open(model("llama"), options, table_);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    std::vector<std::int32_t> prompt(40);
    for (std::size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<std::int32_t>(t * 5 % 190);
    const std::vector<std::int32_t> shorter(prompt.begin() + 3, prompt.begin() + 33);
    run_all(**engine, {greedy_request(prompt, 8), greedy_request(shorter, 8)});
  }
  const std::vector<attention::Backend> table_ = faulty_table();
};

TEST_F(PlantedFaultTest, IsLocatedByOneReplay) {
  // Runs are counted layer by layer: run 7 of two layers is the fourth decode step (step 4), layer 1.
  planted = {.run = 7, .row = 1, .head = 3, .begin = 9, .end = 21};
  const Folder folder;
  record_run(folder.path());
  planted.run = -1;  // the row is as faulty when it is asked again
  const record::ReplayReport report = replay_of(folder.path(), {.table = replay_table(table_)});
  ASSERT_TRUE(report.first);
  const record::Difference& d = *report.first;
  EXPECT_EQ(d.step, 4u) << told(report);
  EXPECT_EQ(d.call, "full.decode");
  EXPECT_EQ(d.row_name, "cpu");
  EXPECT_EQ(d.layer, 1) << told(report);
  EXPECT_EQ(d.row, 1);
  EXPECT_EQ(d.sequence, 2u);
  EXPECT_EQ(d.position, 33);  // 30 tokens of the prompt; step 1 reads position 30
  EXPECT_EQ(d.head, 3);
  ASSERT_TRUE(d.key_begin) << d.keys_note;
  EXPECT_EQ(*d.key_begin, 9);
  EXPECT_EQ(*d.key_end, 21);
  EXPECT_EQ(report.differing, 1);  // later calls did what they should with what they got
}

// A fault that the row shows in the run and not on the recorded inputs is told from one of the row.
TEST_F(PlantedFaultTest, ThatDoesNotComeAgainIsSaidToBeGone) {
  planted = {.run = 4, .row = 0, .head = 0, .begin = 2, .end = 30};
  const Folder folder;
  record_run(folder.path());
  const record::ReplayReport report = replay_of(folder.path());
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->step, 3u);
  EXPECT_EQ(report.first->layer, 0);
  EXPECT_FALSE(report.first->key_begin);
  EXPECT_NE(report.first->keys_note.find("right result"), std::string::npos) << report.first->keys_note;
}

// Faults of the conformance list in a sound record: what `replay --backend cpu --fault NAME` does.
TEST_F(PlantedFaultTest, OfTheConformanceListIsFoundWhereItShowsFirst) {
  planted = {.run = -2};
  const Folder folder;
  Options options = small_options();
  options.record = folder.path();
  {
    auto engine = open_engine(model("llama"), options);
    ASSERT_NE(engine, nullptr);
    std::vector<std::int32_t> prompt(70);
    for (std::size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<std::int32_t>(t * 11 % 190);
    run_all(*engine, {greedy_request(prompt, 3)});
  }
  const auto find = [&](const char* fault) {
    return replay_of(folder.path(), {.backend = "cpu", .fault = fault}).first;
  };
  // Chunks of 24: the third one reaches key 64 first, with its row 16.
  const auto dropped = find("dropped_split");
  ASSERT_TRUE(dropped && dropped->key_begin);
  EXPECT_EQ(dropped->step, 2u);
  EXPECT_EQ(dropped->position, 64);
  EXPECT_EQ(dropped->row, 16);
  EXPECT_EQ(*dropped->key_begin, 64);
  EXPECT_EQ(*dropped->key_end, 65);
  // A single sequence: its first page and its last one are exchanged, once there are two.
  const auto swapped = find("swapped_pages");
  ASSERT_TRUE(swapped && swapped->key_begin);
  EXPECT_EQ(swapped->step, 0u);
  EXPECT_EQ(*swapped->key_begin, 0);
  const auto newest = find("mask_off_by_one");
  ASSERT_TRUE(newest);
  // Lengths that are one short move every row's mask; the first step has no earlier key to fall back on.
  EXPECT_EQ(newest->step, 1u);
  auto reader = record::FileReader::open(folder.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_FALSE(record::replay(*reader, {.backend = "cpu", .fault = "sink_twice"}).ok());
}

// ---- shadow --------------------------------------------------------------------------------------------

TEST_F(ObserverTest, AShadowChangesNothingAndReportsWhatItSaw) {
  Options options = small_options();
  std::vector<std::vector<std::int32_t>> expected;
  {
    auto engine = open_engine(model("gemma3"), options);
    ASSERT_NE(engine, nullptr);
    expected = tokens_of(run_all(*engine, some_requests(5)));
  }
  options.shadow = "reference:0.4";
  ShadowStats first;
  for (int turn = 0; turn < 2; ++turn) {
    auto engine = open_engine(model("gemma3"), options);
    ASSERT_NE(engine, nullptr);
    std::int64_t ledger = 0;
    for (const LedgerLine& line : engine->info().ledger)
      if (line.owner.starts_with("shadow")) ledger += line.bytes;
    EXPECT_GT(ledger, 0);
    EXPECT_EQ(tokens_of(run_all(*engine, some_requests(5))), expected);
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.shadow.steps, 0);
    EXPECT_LT(stats.shadow.steps, stats.steps);
    EXPECT_GT(stats.replayed_steps, 0);
    EXPECT_GT(stats.shadow.calls, stats.shadow.steps);
    EXPECT_GT(stats.shadow.max_abs.error, 0);  // float against double
    EXPECT_LT(stats.shadow.max_rel.error, 1e-3);
    EXPECT_EQ(stats.shadow.calls_over, 0) << stats.shadow.frobenius;
    EXPECT_GT(stats.shadow.share, 0);
    EXPECT_LT(stats.shadow.share, 1);
    if (turn == 0) {
      first = stats.shadow;
      continue;
    }
    EXPECT_EQ(stats.shadow.steps, first.steps);
    EXPECT_EQ(stats.shadow.max_abs.error, first.max_abs.error);
    EXPECT_EQ(stats.shadow.max_abs.step, first.max_abs.step);
  }
}

TEST_F(PlantedFaultTest, ShowsInAShadowWithItsPlace) {
  planted = {.run = 7, .row = 1, .head = 3, .begin = 9, .end = 21};
  decode_runs = 0;
  Options options = small_options();
  options.chunk_tokens = 96;
  options.graphs = false;
  options.shadow = "reference:1";
  auto engine = EngineImpl::open(model("llama"), options, table_);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  std::vector<std::int32_t> prompt(40);
  for (std::size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<std::int32_t>(t * 5 % 190);
  run_all(**engine, {greedy_request(prompt, 8), greedy_request({prompt.begin(), prompt.begin() + 30}, 8)});
  const ShadowStats shadow = (*engine)->stats().shadow;
  EXPECT_EQ(shadow.calls_over, 1);
  EXPECT_EQ(shadow.max_abs.step, 4u);
  EXPECT_EQ(shadow.max_abs.layer, 1);
  EXPECT_EQ(shadow.max_abs.row, 1);
  EXPECT_EQ(shadow.max_abs.head, 3);
}

}  // namespace
}  // namespace quire::engine::testing
