// The goldens of every family: log-probabilities, best tokens and greedy continuations in float32, by an
// eager model without an engine, whole prompts and odd chunks, several page sizes, mixed steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/golden_dir.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "model/testing/harness.h"

namespace quire::model {
namespace {

using testing::Chunk;
using testing::Harness;
using testing::HarnessOptions;

constexpr double kLogprobGate = 2e-4;
constexpr double kMarginGate = 5e-3;  // of the logits' standard deviation

struct Case {
  std::vector<std::int32_t> tokens, argmax, greedy;
  std::vector<float> logprobs, bf16_logprobs, margin, greedy_margin;
};

struct Golden {
  std::vector<Case> cases;
  float logit_std = 0;
};

Golden read_golden(const std::string& path) {
  auto file = checkpoint::MappedFile::open(path);
  EXPECT_TRUE(file.ok());
  auto tensors = checkpoint::parse_safetensors(file->bytes(), path);
  EXPECT_TRUE(tensors.ok());
  const auto read = [&]<class T>(const std::string& name, std::vector<T>& out) {
    for (const checkpoint::TensorInfo& tensor : *tensors) {
      if (tensor.name != name) continue;
      out.resize(tensor.bytes / sizeof(T));
      std::memcpy(out.data(), tensor.data, tensor.bytes);
      return true;
    }
    return false;
  };
  Golden golden;
  std::vector<float> logit_std;
  read("logit_std", logit_std);
  golden.logit_std = logit_std.at(0);
  for (int i = 0;; ++i) {
    const std::string prefix = "case" + std::to_string(i) + ".";
    Case c;
    if (!read(prefix + "tokens", c.tokens)) break;
    read(prefix + "logprobs", c.logprobs);
    read(prefix + "bf16_logprobs", c.bf16_logprobs);
    read(prefix + "argmax", c.argmax);
    read(prefix + "margin", c.margin);
    read(prefix + "greedy", c.greedy);
    read(prefix + "greedy_margin", c.greedy_margin);
    golden.cases.push_back(std::move(c));
  }
  return golden;
}

double logprob(const float* logits, std::int64_t vocab, std::int32_t token) {
  const float most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - most);
  return static_cast<double>(logits[token]) - most - std::log(sum);
}

std::int32_t best(const float* logits, std::int64_t vocab) {
  return static_cast<std::int32_t>(std::max_element(logits, logits + vocab) - logits);
}

// Logits of every position, fed `chunk` tokens at a time (0: all).
std::vector<float> feed(Harness& harness, const std::vector<std::int32_t>& tokens, std::size_t chunk,
                        int sequence) {
  harness.reset(sequence);
  if (chunk == 0) chunk = tokens.size();
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::size_t end = std::min(tokens.size(), begin + chunk);
    const std::vector<float> part =
        harness.step({Chunk{sequence, {tokens.begin() + begin, tokens.begin() + end}}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

// What errors are held against (README of the goldens).
enum class Gate { exact, bf16, fp8, rounded_products };

struct Setting {
  std::string model;
  std::size_t chunk = 0;
  int page_size = 16;
  Determinism level = Determinism::schedule_invariant;
  std::string backend;
  DType kv_type = DType::f32;
  Gate gate = Gate::exact;
};

std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  std::string name = info.param.model + "_chunk" + std::to_string(info.param.chunk) + "_page" +
                     std::to_string(info.param.page_size);
  if (info.param.level != Determinism::schedule_invariant) name += "_dense";
  if (!info.param.backend.empty()) name += "_" + info.param.backend;
  if (info.param.kv_type != DType::f32) name += "_" + std::string(to_string(info.param.kv_type));
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// Errors against the float32 golden, ours and those of the stored bf16 run.
class Errors {
 public:
  void add(double ours, double golden, double bf16) {
    ours_.push_back(std::isnan(ours) ? HUGE_VAL : std::fabs(ours - golden));
    bf16_.push_back(std::fabs(bf16 - golden));
  }
  // Mixtures of experts: a rounded router picks other experts now and then, so there is no gate on the
  // largest.
  void judge(Gate gate, bool experts) {
    std::sort(ours_.begin(), ours_.end());
    std::sort(bf16_.begin(), bf16_.end());
    std::printf(
        "  |dlogprob| largest %.1e, 90 %% %.1e, mean %.1e; of the stored bf16 run: %.1e, %.1e, %.1e\n",
        ours_.back(), quantile(ours_), mean(ours_), bf16_.back(), quantile(bf16_), mean(bf16_));
    switch (gate) {
      case Gate::exact:
        EXPECT_LE(ours_.back(), kLogprobGate);
        return;
      case Gate::bf16:
        EXPECT_LE(mean(ours_), 1.5 * mean(bf16_) + 1e-3);
        EXPECT_LE(quantile(ours_), 1.5 * quantile(bf16_) + 2e-3);
        EXPECT_LE(ours_.back(), experts ? HUGE_VAL : 3 * bf16_.back() + 1e-2);
        return;
      case Gate::fp8:
        EXPECT_LE(mean(ours_), 6 * mean(bf16_) + 2e-2);
        EXPECT_LE(quantile(ours_), 6 * quantile(bf16_) + 4e-2);
        return;
      case Gate::rounded_products:
        EXPECT_LE(mean(ours_), 3 * mean(bf16_) + 1e-2);
        return;
    }
  }

 private:
  static double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  static double quantile(const std::vector<double>& sorted) { return sorted[sorted.size() * 9 / 10]; }

  std::vector<double> ours_, bf16_;
};

// Best tokens and the greedy continuation, but for stored near ties.
void expect_tokens(Harness& harness, const Case& c, const std::vector<float>& logits, double near_tie) {
  const std::int64_t vocab = harness.spec().vocab;
  for (std::size_t t = 0; t < c.tokens.size(); ++t) {
    if (c.margin[t] <= near_tie) continue;
    EXPECT_EQ(best(logits.data() + t * vocab, vocab), c.argmax[t])
        << "position " << t << " of " << c.tokens.size();
  }
  std::int32_t token = best(logits.data() + (c.tokens.size() - 1) * vocab, vocab);
  for (std::size_t i = 0; i < c.greedy.size(); ++i) {
    ASSERT_EQ(token, c.greedy[i]) << "greedy token " << i << " after " << c.tokens.size();
    if (i + 1 < c.greedy.size()) token = best(harness.step({Chunk{0, {token}}}).data(), vocab);
  }
}

class GoldenTest : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    folder_ = quire::testing::golden_dir() + "/" + GetParam().model;
    if (!std::filesystem::exists(folder_ + "/golden.safetensors")) FAIL() << "no golden data at " << folder_;
  }
  // Folders are opened as they are, GGUF files by name.
  std::string model_path() const {
    const std::string file = folder_ + "/model.gguf";
    return std::filesystem::exists(file) ? file : folder_;
  }
  std::string folder_;
};

TEST_P(GoldenTest, MatchesTheReference) {
  const Setting& setting = GetParam();
  HarnessOptions options;
  options.page_size = setting.page_size;
  options.level = setting.level;
  options.backend = setting.backend;
  options.kv_type = setting.kv_type;
  auto opened = Harness::open(model_path(), options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  Harness& harness = **opened;
  const Golden golden = read_golden(folder_ + "/golden.safetensors");
  const std::int64_t vocab = harness.spec().vocab;
  Errors errors;
  for (const Case& c : golden.cases) {
    const std::vector<float> logits = feed(harness, c.tokens, setting.chunk, 0);
    for (std::size_t t = 0; t + 1 < c.tokens.size(); ++t) {
      errors.add(logprob(logits.data() + t * vocab, vocab, c.tokens[t + 1]), c.logprobs[t],
                 c.bf16_logprobs[t]);
    }
    if (setting.gate == Gate::exact) expect_tokens(harness, c, logits, kMarginGate * golden.logit_std);
  }
  errors.judge(setting.gate, harness.spec().moe.has_value());
}

constexpr Determinism kInvariant = Determinism::schedule_invariant;
constexpr Determinism kDense = Determinism::run_to_run;

INSTANTIATE_TEST_SUITE_P(Whole, GoldenTest,
                         ::testing::Values(Setting{"models/llama"}, Setting{"models/llama_tied"},
                                           Setting{"models/llama_f16"}, Setting{"models/llama_f32"},
                                           Setting{"models/llama_sharded"}, Setting{"models/llama_mha_bias"},
                                           Setting{"models/llama_linear"}, Setting{"models/llama_yarn"},
                                           Setting{"models/llama3_rope"}, Setting{"models/llama_mqa"},
                                           Setting{"models/mistral_swa"}, Setting{"models/qwen2"},
                                           Setting{"models/qwen3"}, Setting{"models/gemma3"},
                                           Setting{"models/gpt_oss"}, Setting{"models/deepseek_v3"},
                                           Setting{"gguf/llama_f32"}),
                         setting_name);

INSTANTIATE_TEST_SUITE_P(Chunked, GoldenTest,
                         ::testing::Values(Setting{"models/llama", 5, 7}, Setting{"models/gemma3", 64, 1},
                                           Setting{"models/gpt_oss", 5, 64},
                                           Setting{"models/deepseek_v3", 64, 7},
                                           Setting{"models/deepseek_v3", 0, 16, kDense},
                                           Setting{"models/deepseek_v3", 5, 7, kDense},
                                           Setting{"models/deepseek_v3", 64, 256, kDense},
                                           Setting{"models/mistral_swa", 1, 16}),
                         setting_name);

Setting reference(const std::string& model, std::size_t chunk, int page_size, Determinism level) {
  return Setting{"models/" + model, chunk, page_size, level, "reference"};
}
INSTANTIATE_TEST_SUITE_P(Reference, GoldenTest,
                         ::testing::Values(reference("llama_mqa", 64, 16, kInvariant),
                                           reference("gemma3", 5, 7, kInvariant),
                                           reference("gpt_oss", 64, 1, kInvariant),
                                           reference("deepseek_v3", 0, 16, kInvariant),
                                           reference("deepseek_v3", 64, 7, kDense)),
                         setting_name);

Setting narrow_kv(const std::string& model, DType type, Determinism level) {
  return Setting{.model = "models/" + model,
                 .chunk = 64,
                 .level = level,
                 .kv_type = type,
                 .gate = type == DType::fp8_e4m3 ? Gate::fp8 : Gate::bf16};
}
INSTANTIATE_TEST_SUITE_P(NarrowKv, GoldenTest,
                         ::testing::Values(narrow_kv("llama", DType::bf16, kInvariant),
                                           narrow_kv("gemma3", DType::bf16, kInvariant),
                                           narrow_kv("gpt_oss", DType::bf16, kInvariant),
                                           narrow_kv("deepseek_v3", DType::bf16, kInvariant),
                                           narrow_kv("deepseek_v3", DType::bf16, kDense),
                                           narrow_kv("llama", DType::fp8_e4m3, kInvariant),
                                           narrow_kv("gemma3", DType::fp8_e4m3, kInvariant),
                                           narrow_kv("gpt_oss", DType::fp8_e4m3, kInvariant),
                                           narrow_kv("deepseek_v3", DType::fp8_e4m3, kInvariant),
                                           narrow_kv("deepseek_v3", DType::fp8_e4m3, kDense)),
                         setting_name);

// ggml's own products (README of the goldens, "activations rounded to 8 bits").
Setting rounded(const std::string& type) {
  return Setting{.model = "gguf/" + type, .gate = Gate::rounded_products};
}
INSTANTIATE_TEST_SUITE_P(Rounded, GoldenTest,
                         ::testing::Values(rounded("llama_f16"), rounded("llama_bf16"), rounded("llama_q8_0"),
                                           rounded("llama_q4_0"), rounded("llama_q4_1"),
                                           rounded("llama_mixed_k"), rounded("qwen3_q8_0"),
                                           rounded("gemma3_q8_0")),
                         setting_name);

// A step that mixes sequences and phases gives every row the bits that it has alone.
TEST(MixedStep, RowsDoNotDependOnTheirMates) {
  for (const std::string model : {"llama", "gemma3", "gpt_oss", "deepseek_v3"}) {
    const std::string folder = quire::testing::golden_dir() + "/models/" + model;
    if (!std::filesystem::exists(folder)) FAIL() << "no golden data at " << folder;
    auto opened = Harness::open(folder, {});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Harness& harness = **opened;
    const std::int64_t vocab = harness.spec().vocab;
    std::vector<std::int32_t> a(90), b(70);
    std::iota(a.begin(), a.end(), 3);
    std::iota(b.begin(), b.end(), 100);
    const std::vector<float> alone_a = feed(harness, a, 0, 0);
    const std::vector<float> alone_b = feed(harness, b, 0, 1);
    harness.reset(0);
    harness.reset(1);
    harness.step({Chunk{0, {a.begin(), a.end() - 1}}, Chunk{1, {b.begin(), b.begin() + 50}}});
    const std::vector<float> mixed =
        harness.step({Chunk{0, {a.back()}}, Chunk{1, {b.begin() + 50, b.end()}}});
    EXPECT_TRUE(std::equal(mixed.begin(), mixed.begin() + vocab, alone_a.end() - vocab)) << model;
    EXPECT_TRUE(std::equal(mixed.begin() + vocab, mixed.end(), alone_b.end() - 20 * vocab)) << model;
  }
}

// The dense form over prefixes longer than one gathered chunk, shared by sequences, against the absorbed
// form.
TEST(DenseExtend, LongPrefixesInPassesMatchTheAbsorbedForm) {
  const std::string folder = quire::testing::golden_dir() + "/models/deepseek_v3";
  if (!std::filesystem::exists(folder)) FAIL() << "no golden data at " << folder;
  HarnessOptions options;
  options.max_context = 1400;
  const auto run = [&](Determinism level) {
    options.level = level;
    auto opened = Harness::open(folder, options);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    Harness& harness = **opened;
    const auto tokens = [](int count, int from) {
      std::vector<std::int32_t> out(count);
      for (int i = 0; i < count; ++i) out[i] = (from + i * 7) % 250 + 3;
      return out;
    };
    harness.step({Chunk{0, tokens(500, 1)}});
    harness.step({Chunk{0, tokens(600, 2)}});
    harness.step({Chunk{1, tokens(400, 3)}, Chunk{2, tokens(200, 4)}});
    harness.step({Chunk{1, tokens(600, 5)}});
    // Prefixes of 1100, 0, 1000 and 200 keys: three passes, one border inside a sequence.
    return harness.step(
        {Chunk{0, tokens(20, 6)}, Chunk{3, tokens(30, 7)}, Chunk{1, tokens(9, 8)}, Chunk{2, tokens(5, 9)}});
  };
  const std::vector<float> absorbed = run(Determinism::schedule_invariant);
  const std::vector<float> dense = run(Determinism::run_to_run);
  ASSERT_EQ(absorbed.size(), dense.size());
  double worst = 0;
  for (std::size_t i = 0; i < dense.size(); ++i)
    worst = std::max<double>(worst, std::fabs(absorbed[i] - dense[i]));
  EXPECT_LE(worst, 5e-4);
}

}  // namespace
}  // namespace quire::model
