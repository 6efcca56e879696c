#include "model/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/golden_dir.h"
#include "checkpoint/test_files.h"
#include "model/names.h"

namespace quire::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::JsonDocument;
using checkpoint::open_checkpoint;

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Result<ModelSpec> parse(std::string_view text) {
  QUIRE_TRY(document, JsonDocument::parse(text, "config.json"));
  return read_config_spec(document.root());
}

std::string problem(std::string_view text) {
  const auto spec = parse(text);
  return spec.ok() ? "" : spec.error().message;
}

// A legal config of `architecture` with further keys; later keys replace earlier ones of `base`.
std::string config(std::string_view architecture, std::map<std::string, std::string> changes = {}) {
  std::map<std::string, std::string> keys{
      {"architectures", "[\"" + std::string(architecture) + "\"]"},
      {"vocab_size", "259"},
      {"hidden_size", "96"},
      {"intermediate_size", "136"},
      {"num_hidden_layers", "3"},
      {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"},
      {"head_dim", "64"},
      {"max_position_embeddings", "2048"},
      {"rms_norm_eps", "1e-5"},
      {"rope_theta", "20000"},
  };
  for (auto& [key, value] : changes) keys[key] = value;
  std::string out = "{";
  for (const auto& [key, value] : keys) {
    if (!value.empty()) out += (out.size() > 1 ? ", \"" : "\"") + key + "\": " + value;
  }
  return out + "}";
}

std::string llama(std::map<std::string, std::string> changes = {}) {
  return config("LlamaForCausalLM", std::move(changes));
}

TEST(Spec, Llama) {
  const auto spec = parse(llama());
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->family, Family::llama);
  EXPECT_EQ(spec->layers.size(), 3u);
  ASSERT_EQ(spec->groups.size(), 1u);
  EXPECT_EQ(spec->groups[0].name, "full");
  EXPECT_EQ(spec->groups[0].layers, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(spec->ropes.at(0).theta, 20000);
  EXPECT_EQ(spec->ropes.at(0).rotary_dim, 64);
  EXPECT_FALSE(spec->tied || spec->qkv_bias || spec->o_bias || spec->qk_norm);
  EXPECT_DOUBLE_EQ(spec->attention_scale, 0.125);
  EXPECT_EQ(kv_layer_shape(*spec).kv_heads, 2);
  const auto old = parse(llama(
      {{"head_dim", ""}, {"num_key_value_heads", ""}, {"rope_theta", ""}, {"torch_dtype", "\"float16\""}}));
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_EQ(old->qk_dim, 24);
  EXPECT_EQ(old->kv_heads, 4);
  EXPECT_EQ(old->ropes.at(0).theta, 10000);
  EXPECT_EQ(old->dtype, DType::f16);
  EXPECT_TRUE(parse(llama({{"attention_bias", "true"}}))->o_bias);
}

TEST(Spec, EachMissingKeyIsNamed) {
  for (const char* key :
       {"architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings", "rms_norm_eps"}) {
    EXPECT_TRUE(has(problem(llama({{key, ""}})), key)) << key;
    EXPECT_TRUE(has(problem(llama({{key, "null"}})), key)) << key;
    EXPECT_TRUE(has(problem(llama({{key, "{}"}})), key)) << key;
  }
}

TEST(Spec, SizesAreBounded) {
  const std::map<std::string, std::vector<std::string>> bad{
      {"vocab_size", {"0", "-1", "16777217", "1e30", "1.5"}},
      {"hidden_size", {"0", "1048577"}},
      {"intermediate_size", {"0", "4194305"}},
      {"num_hidden_layers", {"0", "4097", "18446744073709551615"}},
      {"num_attention_heads", {"0", "4097"}},
      {"num_key_value_heads", {"0", "3", "8"}},
      {"head_dim", {"0", "7", "4097"}},
      {"max_position_embeddings", {"0", "1073741825"}},
      {"rms_norm_eps", {"-1", "2", "\"x\""}},
      {"rope_theta", {"1", "0", "-5"}},
  };
  for (const auto& [key, values] : bad) {
    for (const std::string& value : values)
      EXPECT_NE(problem(llama({{key, value}})), "") << key << " " << value;
  }
}

TEST(Spec, FeaturesThatAreNotThereAreRefusedByName) {
  const std::map<std::string, std::string> bad{
      {"quantization_config", R"({"quant_method": "gptq"})"},
      {"mlp_bias", "true"},
      {"hidden_act", "\"relu\""},
      {"partial_rotary_factor", "0.5"},
      {"sliding_window", "48"},
      {"clip_qkv", "8"},
      {"dtype", "\"int8\""},
      {"layer_types", R"(["full_attention", "chunked_attention", "full_attention"])"},
      {"rope_scaling", R"({"type": "dynamic", "factor": 2})"},
  };
  for (const auto& [key, value] : bad) {
    const std::string message = problem(llama({{key, value}}));
    EXPECT_TRUE(has(message, "not supported") || has(message, "must be")) << key << ": " << message;
  }
  EXPECT_TRUE(has(problem(llama({{"quantization_config", R"({"quant_method": "gptq"})"}})), "gptq"));
  EXPECT_TRUE(has(problem(llama({{"layer_types", R"(["full_attention"])"}})), "1 entries for 3 layers"));
  EXPECT_EQ(
      problem(llama({{"mlp_bias", "false"}, {"partial_rotary_factor", "1.0"}, {"sliding_window", "null"}})),
      "");
}

TEST(Spec, RopeKinds) {
  const auto rope = [](std::string_view object) { return llama({{"rope_scaling", std::string(object)}}); };
  EXPECT_EQ(parse(rope("null"))->ropes[0].kind, RopeKind::plain);
  EXPECT_EQ(parse(rope(R"({"type": "linear", "factor": 4})"))->ropes[0].factor, 4);
  EXPECT_TRUE(has(problem(rope(R"({"rope_type": "dynamic", "factor": 4})")), "dynamic NTK"));
  EXPECT_TRUE(has(problem(rope(R"({"rope_type": "longrope"})")), "longrope is not supported"));
  EXPECT_TRUE(has(problem(rope(R"({"rope_type": "linear"})")), "factor is missing"));
  EXPECT_TRUE(has(problem(rope(R"({"rope_type": "linear", "factor": 4, "llama_4_scaling_beta": 0.1})")),
                  "llama_4_scaling_beta"));
  EXPECT_TRUE(has(
      problem(rope(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4})")),
      "original_max_position_embeddings is missing"));
  EXPECT_TRUE(has(
      problem(rope(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})")),
      "must be over"));
  const auto yarn = parse(rope(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64})"));
  ASSERT_TRUE(yarn.ok());
  EXPECT_EQ(yarn->ropes[0].factor, 4);  // as given, not max / original
  EXPECT_DOUBLE_EQ(yarn->ropes[0].cos_sin_factor, 0.1 * std::log(4.0) + 1);
  const auto stretched =
      parse(rope(R"({"type": "yarn", "original_max_position_embeddings": 64, "attention_factor": 1.5})"));
  EXPECT_EQ(stretched->ropes[0].factor, 32);
  EXPECT_EQ(stretched->ropes[0].cos_sin_factor, 1.5);
  EXPECT_TRUE(has(problem(llama({{"rope_scaling", R"({"type": "linear", "factor": 4})"},
                                 {"rope_parameters", R"({"rope_type": "default"})"}})),
                  "both set"));
}

TEST(Spec, WindowsOfMistralAndQwen) {
  EXPECT_EQ(parse(config("MistralForCausalLM"))->groups[0].window, 4096);
  EXPECT_EQ(parse(config("MistralForCausalLM", {{"sliding_window", "null"}}))->groups[0].name, "full");
  EXPECT_EQ(parse(config("MistralForCausalLM", {{"sliding_window", "48"}}))->groups[0].window, 48);
  const std::map<std::string, std::string> slide{
      {"use_sliding_window", "true"}, {"sliding_window", "48"}, {"max_window_layers", "1"}};
  const auto qwen = parse(config("Qwen2ForCausalLM", slide));
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  ASSERT_EQ(qwen->groups.size(), 2u);
  EXPECT_EQ(qwen->groups[0].layers, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(qwen->groups[1].layers, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(qwen->layers[2].group, 1);
  EXPECT_EQ(qwen->layers[2].index_in_group, 1);
  EXPECT_TRUE(qwen->qkv_bias);
  EXPECT_FALSE(qwen->o_bias);
  EXPECT_EQ(parse(config("Qwen2ForCausalLM", {{"sliding_window", "48"}}))->groups.size(), 1u);
  EXPECT_TRUE(parse(config("Qwen3ForCausalLM"))->qk_norm);
  EXPECT_TRUE(has(problem(config("Qwen3ForCausalLM", {{"head_dim", ""}})), "head_dim"));
}

TEST(Spec, UnsupportedArchitecturesListTheSupported) {
  const std::string message = problem(config("LlamaForCausalLN"));
  EXPECT_TRUE(has(message, "LlamaForCausalLN is not supported (the nearest is LlamaForCausalLM)")) << message;
  EXPECT_TRUE(has(message, "DeepseekV3ForCausalLM")) << message;
  EXPECT_TRUE(has(problem(config("BertModel")), supported_architectures()));
  EXPECT_TRUE(has(problem(R"({"architectures": []})"), "one architecture"));
}

// ---- the golden checkpoints -------------------------------------------------------------------------------

const std::map<std::string, Family> kSupported{
    {"llama", Family::llama},
    {"llama_mqa", Family::llama},
    {"llama3_rope", Family::llama},
    {"llama_yarn", Family::llama},
    {"llama_linear", Family::llama},
    {"llama_mha_bias", Family::llama},
    {"llama_f16", Family::llama},
    {"llama_f32", Family::llama},
    {"llama_sharded", Family::llama},
    {"llama_tied", Family::llama},
    {"mistral_swa", Family::llama},
    {"qwen2", Family::llama},
    {"qwen2_swa", Family::llama},
    {"qwen3", Family::llama},
    {"gemma3", Family::gemma3},
    {"gpt_oss", Family::gpt_oss},
    {"deepseek_v3", Family::deepseek_v3},
};

// The first expected tensor that the checkpoint lacks or has in another shape, or one too many; "" if none.
std::string tensor_problem(const ModelSpec& spec, const Checkpoint& checkpoint) {
  std::size_t used = 0;
  for (const ExpectedWeight& weight : expected_weights(spec)) {
    const auto* tensor = checkpoint.find(weight.name);
    if (tensor == nullptr) return "missing " + weight.name;
    if (tensor->shape != weight.shape) return "shape of " + weight.name;
    ++used;
  }
  for (const auto& tensor : checkpoint.tensors()) used += is_ignored_tensor(spec, tensor.name);
  return used == checkpoint.tensors().size() ? "" : "tensors that are not expected";
}

TEST(GoldenSpec, ModelsParseOrAreRefusedByName) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty() || !std::filesystem::exists(golden + "/models")) FAIL() << "no golden data";
  int parsed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden + "/models")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    const auto checkpoint = open_checkpoint(entry.path().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const auto spec = read_spec(**checkpoint);
    const auto expected = kSupported.find(name);
    if (expected == kSupported.end()) {
      ASSERT_FALSE(spec.ok()) << name;
      const auto architecture = (*checkpoint)->config().strings("architectures", 1)->at(0);
      EXPECT_TRUE(has(spec.error().message, architecture) || has(spec.error().message, "quantization_config"))
          << spec.error().message;
      continue;
    }
    ASSERT_TRUE(spec.ok()) << name << ": " << spec.error().message;
    EXPECT_EQ(spec->family, expected->second) << name;
    EXPECT_EQ(tensor_problem(*spec, **checkpoint), "") << name;
    ++parsed;
  }
  EXPECT_GT(parsed, 0);
}

TEST(GoldenSpec, PublishedStyleGivesTheSameSpec) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty() || !std::filesystem::exists(golden + "/legacy_config")) FAIL() << "no golden data";
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden + "/legacy_config")) {
    const std::string name = entry.path().filename().string();
    if (!kSupported.contains(name) || !std::filesystem::exists(golden + "/models/" + name)) continue;
    const auto legacy = open_checkpoint(entry.path().string() + "/config.json");
    const auto current = open_checkpoint(golden + "/models/" + name);
    ASSERT_TRUE(legacy.ok() && current.ok()) << name;
    EXPECT_FALSE((*legacy)->has_weights());
    const auto a = read_spec(**legacy);
    const auto b = read_spec(**current);
    ASSERT_TRUE(a.ok()) << a.error().message;
    ASSERT_TRUE(b.ok()) << b.error().message;
    EXPECT_EQ(to_string(*a), to_string(*b)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(GoldenSpec, Gemma3) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty() || !std::filesystem::exists(golden + "/models/gemma3")) FAIL() << "no golden data";
  const auto spec = read_spec(**open_checkpoint(golden + "/models/gemma3"));
  ASSERT_TRUE(spec.ok());
  ASSERT_EQ(spec->groups.size(), 2u);
  EXPECT_EQ(spec->groups[0].name, "window");
  EXPECT_EQ(spec->groups[0].window, 48);
  EXPECT_EQ(spec->groups[0].layers.size(), 5u);
  EXPECT_EQ(spec->groups[1].layers, (std::vector<std::int32_t>{5}));
  EXPECT_EQ(spec->layers[5].rope, 0);
  EXPECT_EQ(spec->layers[0].rope, 1);
  EXPECT_EQ(spec->ropes[0].kind, RopeKind::linear);
  EXPECT_EQ(spec->ropes[1].theta, 20000);
  EXPECT_DOUBLE_EQ(spec->attention_scale, 1.0 / 12);
  EXPECT_EQ(spec->embed_scale, static_cast<double>(std::sqrt(96.0f)));
  EXPECT_TRUE(spec->tied && spec->norm_plus_one && spec->post_norms && spec->qk_norm);
}

TEST(GoldenSpec, DeepseekV3) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty() || !std::filesystem::exists(golden + "/models/deepseek_v3")) FAIL() << "no golden data";
  const auto spec = read_spec(**open_checkpoint(golden + "/models/deepseek_v3"));
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(kv_layer_shape(*spec).qk_dim, 576);
  EXPECT_EQ(kv_layer_shape(*spec).v_dim, 512);
  EXPECT_EQ(kv_layer_shape(*spec).kv_heads, 1);
  EXPECT_TRUE(kv_layer_shape(*spec).latent);
  const double mscale = 0.1 * std::log(4.0) + 1;
  EXPECT_DOUBLE_EQ(spec->attention_scale, mscale * mscale / std::sqrt(192.0));
  EXPECT_DOUBLE_EQ(spec->ropes[0].cos_sin_factor, 1.0);
  EXPECT_TRUE(spec->ropes[0].interleaved);
  EXPECT_FALSE(spec->layers[0].moe);
  EXPECT_TRUE(spec->layers[1].moe);
  EXPECT_EQ(spec->groups[0].name, "latent");
  EXPECT_EQ(spec->moe->shared_intermediate, 48);
}

TEST(GoldenSpec, GgufTwins) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty() || !std::filesystem::exists(golden + "/gguf")) FAIL() << "no golden data";
  int parsed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden + "/gguf")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    const auto file = open_checkpoint(entry.path().string() + "/model.gguf");
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto spec = read_spec(**file);
    if (name.starts_with("gpt_oss")) {
      EXPECT_TRUE(has(spec.error().message, "gpt-oss is not supported")) << spec.error().message;
      continue;
    }
    ASSERT_TRUE(spec.ok()) << name << ": " << spec.error().message;
    EXPECT_EQ(tensor_problem(*spec, **file), "") << name;
    const auto twin = read_spec(**open_checkpoint(entry.path().string() + "/hf_config.json"));
    ASSERT_TRUE(twin.ok()) << twin.error().message;
    // The same model, but for what the file kinds store differently.
    ModelSpec same = *twin;
    same.architecture = spec->architecture;
    same.norm_plus_one = false;
    same.norm_eps = static_cast<float>(same.norm_eps);
    same.dtype = spec->dtype;
    for (RopeSpec& rope : same.ropes) rope.interleaved = name.starts_with("llama");
    EXPECT_EQ(to_string(*spec), to_string(same)) << name;
    ++parsed;
  }
  EXPECT_GT(parsed, 0);
}

TEST(Spec, RealGguf) {
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) FAIL() << "the real model was not fetched";
  const auto file = open_checkpoint(path);
  ASSERT_TRUE(file.ok());
  const auto spec = read_spec(**file);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 30u);
  EXPECT_EQ(spec->q_heads, 9);
  EXPECT_EQ(spec->kv_heads, 3);
  EXPECT_EQ(spec->qk_dim, 64);
  EXPECT_EQ(spec->vocab, 49152);
  EXPECT_TRUE(spec->tied);
  EXPECT_TRUE(spec->ropes[0].interleaved);
  EXPECT_EQ(tensor_problem(*spec, **file), "");
}

}  // namespace
}  // namespace quire::model
