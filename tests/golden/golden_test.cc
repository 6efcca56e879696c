// The goldens through the public engine: every spine family, both backends, many page sizes, chunk sizes
// and KV types, alone and as a batch; GGUF twins and configs in the published style.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/golden_dir.h"
#include "golden_file.h"
#include "quire/engine.h"

namespace quire::golden {
namespace {

const char* const kFamilies[] = {"llama", "llama3_rope", "llama_mqa", "mistral_swa", "qwen2",
                                 "qwen3", "gemma3",      "gpt_oss",   "deepseek_v3"};
bool is_moe(const std::string& model) { return model == "gpt_oss" || model == "deepseek_v3"; }

struct Answers {
  std::vector<std::vector<Scored>> scored;        // per case
  std::vector<std::vector<std::int32_t>> greedy;  // per case
};

std::unique_ptr<Engine> open_or_fail(const std::string& path, const Options& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::open(path, options);
  EXPECT_TRUE(engine.ok()) << path << ": " << engine.error().message;
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// All cases at once: scoring requests and greedy answers run as one continuous batch of different lengths.
Answers compute(Engine& engine, const Golden& golden, bool greedy) {
  Answers answers;
  answers.scored.resize(golden.cases.size());
  answers.greedy.resize(golden.cases.size());
  std::map<RequestId, std::size_t> score_ids, greedy_ids;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    Request request;
    request.prompt = golden.cases[i].tokens;
    if (greedy) {
      request.max_tokens = static_cast<std::int32_t>(golden.cases[i].greedy.size());
      const Result<RequestId> id = engine.submit(request);
      EXPECT_TRUE(id.ok()) << id.error().message;
      if (id.ok()) greedy_ids[id.value()] = i;
    }
    request.score = true;
    const Result<RequestId> id = engine.submit(request);
    EXPECT_TRUE(id.ok()) << id.error().message;
    if (id.ok()) score_ids[id.value()] = i;
  }
  std::vector<Output> outputs;
  bool more = true;
  while (more) {
    outputs.clear();
    more = engine.step(outputs);
    for (const Output& output : outputs) {
      if (const auto found = score_ids.find(output.id); found != score_ids.end()) {
        auto& list = answers.scored[found->second];
        list.insert(list.end(), output.scored.begin(), output.scored.end());
      } else if (const auto answer = greedy_ids.find(output.id); answer != greedy_ids.end()) {
        auto& list = answers.greedy[answer->second];
        list.insert(list.end(), output.tokens.begin(), output.tokens.end());
      }
    }
  }
  EXPECT_EQ(engine.audit(), std::vector<std::string>());
  return answers;
}

void expect_float32(const Golden& golden, const Answers& answers, const std::string& what) {
  double worst = 0;
  int flips = 0;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    const Case& one = golden.cases[i];
    ASSERT_EQ(answers.scored[i].size(), one.tokens.size()) << what;
    for (std::size_t t = 0; t < one.tokens.size(); ++t) {
      if (t < one.logprobs.size()) {
        const double error = std::abs(double{answers.scored[i][t].logprob} - double{one.logprobs[t]});
        worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
      }
      if (one.margin[t] > 5e-3f * golden.logit_std && answers.scored[i][t].argmax != one.argmax[t]) ++flips;
    }
    if (!answers.greedy[i].empty()) EXPECT_EQ(answers.greedy[i], one.greedy) << what << " case " << i;
  }
  EXPECT_LE(worst, 2e-4) << what;
  EXPECT_EQ(flips, 0) << what;
}

// The gates of 16-bit, fp8 and 8-bit-activation paths, as multiples of the stored bf16 run's errors.
struct Gate {
  double mean_times, mean_plus, quantile_times, quantile_plus, largest_times, largest_plus;
};
constexpr Gate kBf16{1.5, 1e-3, 1.5, 2e-3, 3, 1e-2};
constexpr Gate kFp8{6, 2e-2, 6, 4e-2, 0, 0};
constexpr Gate kInt8Activations{3, 1e-2, 0, 0, 0, 0};

void expect_gate(const Golden& golden, const Answers& answers, const Gate& gate, bool moe,
                 const std::string& what) {
  std::vector<double> ours, theirs;
  for (std::size_t i = 0; i < golden.cases.size(); ++i) {
    const Case& one = golden.cases[i];
    ASSERT_EQ(answers.scored[i].size(), one.tokens.size()) << what;
    for (std::size_t t = 0; t < one.logprobs.size(); ++t) {
      ASSERT_TRUE(std::isfinite(answers.scored[i][t].logprob)) << what;
      ours.push_back(std::abs(answers.scored[i][t].logprob - one.logprobs[t]));
      theirs.push_back(std::abs(one.bf16_logprobs[t] - one.logprobs[t]));
    }
  }
  const Errors got = errors_of(ours), reference = errors_of(theirs);
  EXPECT_LE(got.mean, gate.mean_times * reference.mean + gate.mean_plus) << what;
  if (gate.quantile_times > 0)
    EXPECT_LE(got.quantile90, gate.quantile_times * reference.quantile90 + gate.quantile_plus) << what;
  if (gate.largest_times > 0 && !moe)
    EXPECT_LE(got.largest, gate.largest_times * reference.largest + gate.largest_plus) << what;
}

// Every family's last case has 600 tokens, the others 7 to 130.
Golden without_longest(Golden golden) {
  golden.cases.pop_back();
  return golden;
}

class Goldens : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::golden_dir();
    ASSERT_NE(root_, "") << "the small set in tests/data/golden is missing";
  }
  std::string model(const std::string& name) const { return root_ + "/models/" + name; }
  Golden golden(const std::string& name) const { return load_golden(model(name) + "/golden.safetensors"); }
  std::string root_;
};

Options base_options() {
  Options options;
  options.kv_dtype = "f32";
  options.max_running = 8;
  options.max_context = 1024;
  return options;
}

class Family : public Goldens, public ::testing::WithParamInterface<const char*> {};

TEST_P(Family, Float32AcrossPagesBackendsAndChunks) {
  const Golden whole = golden(GetParam());
  const Golden shorter = without_longest(whole);
  for (const char* backend : {"cpu", "reference"}) {
    for (const int page : {1, 7, 16, 64, 256}) {
      for (const int chunk : {1, 5, 64, 0}) {
        // The oracle is slow: the longest case meets every page size and every chunk size, but not each pair.
        const bool oracle = std::string(backend) == "reference";
        const bool all = !oracle || std::getenv("QUIRE_GOLDEN_FULL") != nullptr || chunk == 64 || page == 7;
        const Golden& expected = all ? whole : shorter;
        Options options = base_options();
        options.attention_backend = backend;
        options.page_size = page;
        options.chunk_tokens = chunk == 0 ? 1024 : chunk;
        const std::string what = fmt::format("{} {} page {} chunk {}", GetParam(), backend, page, chunk);
        const std::unique_ptr<Engine> engine = open_or_fail(model(GetParam()), options);
        ASSERT_NE(engine, nullptr);
        expect_float32(expected, compute(*engine, expected, true), what);
      }
    }
  }
}

TEST_P(Family, SixteenBitAndFp8KvWithinTheirGates) {
  const Golden expected = golden(GetParam());
  for (const auto& [kv, gate] :
       {std::pair{"bf16", kBf16}, std::pair{"f16", kBf16}, std::pair{"fp8_e4m3", kFp8}}) {
    for (const int page : {1, 7, 16, 64, 256}) {
      Options options = base_options();
      options.kv_dtype = kv;
      options.page_size = page;
      const std::unique_ptr<Engine> engine = open_or_fail(model(GetParam()), options);
      ASSERT_NE(engine, nullptr);
      expect_gate(expected, compute(*engine, expected, false), gate, is_moe(GetParam()),
                  fmt::format("{} kv {} page {}", GetParam(), kv, page));
    }
  }
  Options options = base_options();  // one scale of 1 for all, as the golden README simulates it
  options.kv_dtype = "fp8_e4m3";
  options.kv_scale = 1.0f;
  const std::unique_ptr<Engine> engine = open_or_fail(model(GetParam()), options);
  ASSERT_NE(engine, nullptr);
  expect_gate(expected, compute(*engine, expected, false), kFp8, is_moe(GetParam()),
              fmt::format("{} kv fp8 scale 1", GetParam()));
}

TEST_P(Family, PublishedConfigGivesTheSame) {
  const std::filesystem::path legacy = root_ + "/legacy_config/" + GetParam() + "/config.json";
  if (!std::filesystem::exists(legacy)) return;  // five of the nine have one
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("quire_legacy_{}_{}", GetParam(), ::getpid());
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(model(GetParam()))) {
    const std::filesystem::path source = entry.path().filename() == "config.json" ? legacy : entry.path();
    std::filesystem::copy_file(source, folder / entry.path().filename(),
                               std::filesystem::copy_options::overwrite_existing);
  }
  const Golden expected = golden(GetParam());
  {
    const std::unique_ptr<Engine> engine = open_or_fail(folder.string(), base_options());
    ASSERT_NE(engine, nullptr);
    expect_float32(expected, compute(*engine, expected, true),
                   fmt::format("{} published config", GetParam()));
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Spine, Family, ::testing::ValuesIn(kFamilies),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_F(Goldens, GgufTwins) {
  struct Twin {
    const char* name;
    Gate gate;  // unused for float32
    bool float32;
  };
  for (const Twin& twin :
       {Twin{"llama_f32", {}, true}, Twin{"llama_f16", kBf16, false}, Twin{"llama_bf16", kBf16, false},
        Twin{"llama_q8_0", kInt8Activations, false}, Twin{"llama_q4_0", kInt8Activations, false},
        Twin{"llama_q4_1", kInt8Activations, false}, Twin{"qwen3_q8_0", kInt8Activations, false},
        Twin{"gemma3_q8_0", kInt8Activations, false}}) {
    const std::string folder = root_ + "/gguf/" + twin.name;
    const Golden expected = load_golden(folder + "/golden.safetensors");
    const std::unique_ptr<Engine> engine = open_or_fail(folder + "/model.gguf", base_options());
    ASSERT_NE(engine, nullptr);
    const Answers answers = compute(*engine, expected, twin.float32);
    if (twin.float32) {
      expect_float32(expected, answers, twin.name);
    } else {
      expect_gate(expected, answers, twin.gate, false, twin.name);
    }
  }
}

// The dense formulation of latent attention below schedule_invariant: own tokens dense, prefix in parts.
TEST_F(Goldens, LatentDensePrefillBelowScheduleInvariant) {
  const Golden expected = golden("deepseek_v3");
  for (const int chunk : {5, 64, 1024}) {
    Options options = base_options();
    options.deterministic = "run_to_run";
    options.chunk_tokens = chunk;
    const std::unique_ptr<Engine> engine = open_or_fail(model("deepseek_v3"), options);
    ASSERT_NE(engine, nullptr);
    bool dense = false;
    for (const CallInfo& call : engine->info().calls) dense |= call.call == "mla.own";
    EXPECT_TRUE(dense) << "the dense prefill was not picked";
    expect_float32(expected, compute(*engine, expected, true),
                   fmt::format("deepseek_v3 dense prefill, chunk {}", chunk));
  }
}

}  // namespace
}  // namespace quire::golden
