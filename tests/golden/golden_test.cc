// The goldens through the public engine: every spine family, both backends, many page sizes, chunk sizes
// and KV types, alone and as a batch; GGUF twins and configs in the published style.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/golden_dir.h"
#include "golden_run.h"

namespace quire::golden {
namespace {

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
