// Quantised Hugging Face folders: which are read, that they compute what their weights stand for, and what is
// said of those that are not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/golden_dir.h"
#include "checkpoint/test_files.h"
#include "model/names.h"
#include "model/testing/fp8_folder.h"
#include "model/testing/harness.h"

namespace quire::model {
namespace {

using checkpoint::testing::TempFolder;
using nlohmann::json;
using testing::Chunk;
using testing::Fp8Folder;
using testing::Harness;
using testing::HarnessOptions;
using testing::StoredTensors;
using testing::write_fp8_folders;

std::string golden(const std::string& name) { return quire::testing::golden_dir() + "/models/" + name; }

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<float> log_probs(Harness& harness, int tokens) {
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < tokens; ++i) prompt.push_back((i * 37 + 11) % 250);
  std::vector<float> logits = harness.step({Chunk{0, prompt}});
  const std::size_t vocab = static_cast<std::size_t>(harness.spec().vocab);
  for (std::size_t row = 0; row < logits.size(); row += vocab) {
    double sum = 0.0;
    for (std::size_t i = row; i < row + vocab; ++i) sum += std::exp(double{logits[i]});
    for (std::size_t i = row; i < row + vocab; ++i) logits[i] -= static_cast<float>(std::log(sum));
  }
  return logits;
}

// The largest difference of log-probabilities of the folders of write_fp8_folders; negative: one did not
// open.
float difference(const TempFolder& folder, const HarnessOptions& options = {}) {
  auto fp8 = Harness::open(folder.path() + "/fp8", options);
  auto wide = Harness::open(folder.path() + "/wide", {});
  EXPECT_TRUE(fp8.ok()) << fp8.error().message;
  EXPECT_TRUE(wide.ok()) << wide.error().message;
  if (!fp8.ok() || !wide.ok()) return -1.0f;
  const std::vector<float> a = log_probs(**fp8, 57), b = log_probs(**wide, 57);
  float worst = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return std::isfinite(worst) ? worst : 1e9f;
}

constexpr float kNoise = 2e-4f;  // of log-probabilities in float32

TEST(Quantised, FoldersComputeWhatTheirWeightsStandFor) {
  struct Case {
    const char* model;
    Fp8Folder kind;
  };
  for (const Case& c : {Case{"llama", {}}, Case{"llama", {.scale_type = "F32", .keep_head = false}},
                        Case{"llama", {.per_row = false}},
                        Case{"llama", {.per_row = false, .scale_type = "F16", .scalar = true}},
                        Case{"llama", {.ignored = {"model.layers.1.mlp.down_proj"}}}, Case{"llama_tied", {}},
                        Case{"qwen2", {}}, Case{"qwen3", {}}, Case{"gemma3", {}}}) {
    const TempFolder folder;
    write_fp8_folders(golden(c.model), folder.path(), c.kind);
    const float worst = difference(folder);
    EXPECT_GE(worst, 0.0f);
    EXPECT_LE(worst, kNoise) << c.model << " per row " << c.kind.per_row << " " << c.kind.scale_type;
  }
}

// The folders differ from the model that they were made of, or the test above would show nothing.
TEST(Quantised, WeightsAreReallyRounded) {
  const TempFolder folder;
  write_fp8_folders(golden("llama"), folder.path(), {});
  auto fp8 = Harness::open(folder.path() + "/fp8", {});
  auto original = Harness::open(golden("llama"), {});
  ASSERT_TRUE(fp8.ok() && original.ok());
  const std::vector<float> a = log_probs(**fp8, 57), b = log_probs(**original, 57);
  float worst = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  EXPECT_GT(worst, 10 * kNoise);
  EXPECT_LT(worst, 10.0f);
}

TEST(Quantised, MatricesStayE4m3MappedOrCopied) {
  const TempFolder folder;
  write_fp8_folders(golden("llama"), folder.path(), {});
  auto mapped = Harness::open(folder.path() + "/fp8", {});
  ASSERT_TRUE(mapped.ok()) << mapped.error().message;
  const WeightPlan& plan = (*mapped)->weight_plan();
  EXPECT_LT(plan.private_bytes, plan.mapped_bytes / 5);  // vectors and scales
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_TRUE(has(plan.notes[0],
                  "14 F8_E4M3 matrices with scales; activations are f32 and not "
                  "rounded further"))
      << plan.notes[0];
  HarnessOptions apart;
  apart.load.apart = true;
  EXPECT_LE(difference(folder, apart), kNoise);
  auto copied = Harness::open(folder.path() + "/fp8", apart);
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  EXPECT_EQ((*copied)->weight_plan().mapped_bytes, 0);
  EXPECT_EQ((*copied)->weight_plan().parameters, plan.parameters);
  auto wide = Harness::open(folder.path() + "/wide", {});
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ((*wide)->weight_plan().parameters, plan.parameters) << "scales are no parameters";
}

TEST(Quantised, DummyWeightsHaveTheUsualSize) {
  const TempFolder folder;
  write_fp8_folders(golden("llama"), folder.path(), {});
  HarnessOptions options;
  options.load.dummy = true;
  auto fp8 = Harness::open(folder.path() + "/fp8/config.json", options);
  auto wide = Harness::open(folder.path() + "/wide/config.json", options);
  ASSERT_TRUE(fp8.ok()) << fp8.error().message;
  ASSERT_TRUE(wide.ok()) << wide.error().message;
  const auto spread = [](const std::vector<float>& x) {
    double squares = 0.0;
    for (const float v : x) squares += double{v} * v;
    return std::sqrt(squares / static_cast<double>(x.size()));
  };
  const double a = spread((*fp8)->step({Chunk{0, {1, 2, 3, 4, 5, 6, 7}}})),
               b = spread((*wide)->step({Chunk{0, {1, 2, 3, 4, 5, 6, 7}}}));
  EXPECT_GT(a, 0.5 * b);
  EXPECT_LT(a, 2.0 * b);
}

// ---- what is refused --------------------------------------------------------------------------------------

// What is said of a folder with this damage.
std::string refusal(const std::function<void(StoredTensors&, std::string&)>& edit, bool per_row = true,
                    bool apart = false) {
  const TempFolder folder;
  Fp8Folder kind;
  kind.per_row = per_row;
  kind.edit = edit;
  write_fp8_folders(golden("llama"), folder.path(), kind);
  HarnessOptions options;
  options.load.apart = apart;
  auto opened = Harness::open(folder.path() + "/fp8", options);
  return opened.ok() ? "" : opened.error().message;
}

const std::string kUp = "model.layers.1.mlp.up_proj.weight";

TEST(Quantised, DamagedTensorsAreNamed) {
  using Edit = std::function<void(StoredTensors&, std::string&)>;
  struct Case {
    Edit edit;
    std::string said;
  };
  const auto set_scale = [](std::size_t row, float value) {
    return [=](StoredTensors& tensors, std::string&) {
      const std::uint16_t bits = f32_to_bf16(value);
      std::memcpy(tensors[kUp + "_scale"].bytes.data() + 2 * row, &bits, 2);
    };
  };
  const std::vector<Case> cases = {
      {[](StoredTensors& t, std::string&) { t.erase(kUp + "_scale"); },
       "a tensor is missing: model.layers.1.mlp.up_proj.weight_scale"},
      {[](StoredTensors& t, std::string&) {
         t[kUp + "_scale"].shape = {1, 136};
       },
       "model.layers.1.mlp.up_proj.weight_scale is [1, 136], not [136, 1]"},
      {[](StoredTensors& t, std::string&) { t[kUp + "_scale"].shape = {136}; }, "is [136], not [136, 1]"},
      {[](StoredTensors& t, std::string&) { t[kUp + "_scale"].type = "I16"; },
       "model.layers.1.mlp.up_proj.weight_scale (I16); convert the file to one of F32, F16, BF16"},
      {[](StoredTensors& t, std::string&) { t[kUp].type = "I8"; },
       "a tensor is not stored as F8_E4M3: model.layers.1.mlp.up_proj.weight (I8); quantization_config says "
       "so"},
      {[](StoredTensors& t, std::string&) { t["model.embed_tokens.weight_scale"] = t[kUp + "_scale"]; },
       "not part of this architecture: model.embed_tokens.weight_scale"},
      {set_scale(0, -0.5f), "a scale cannot be used: model.layers.1.mlp.up_proj.weight_scale[0] is -0.5"},
      {set_scale(135, std::numeric_limits<float>::quiet_NaN()), "weight_scale[135] is nan"},
      {set_scale(7, std::numeric_limits<float>::infinity()), "weight_scale[7] is inf"},
      {[](StoredTensors& t, std::string&) {
         std::string& scales = t[kUp + "_scale"].bytes;
         scales.assign(scales.size(), '\0');
       },
       "a scale cannot be used: model.layers.1.mlp.up_proj.weight_scale is 0 throughout; scales are finite"},
  };
  for (const Case& c : cases) EXPECT_TRUE(has(refusal(c.edit), c.said)) << c.said << "\n" << refusal(c.edit);
  EXPECT_EQ(refusal(set_scale(7, 0.0f)), "") << "a row may be pruned";
  EXPECT_TRUE(has(refusal(
                      [](StoredTensors& t, std::string&) {
                        t[kUp + "_scale"].shape = {1, 1};
                      },
                      false),
                  "weight_scale is [1, 1], not [1]"));
  const auto nan = [](StoredTensors& t, std::string&) { t[kUp].bytes[500] = '\x7f'; };
  EXPECT_TRUE(
      has(refusal(nan, true, true), "/fp8: the F8_E4M3 matrix model.layers.1.mlp.up_proj.weight holds NaN"));
}

// In a folder nothing else is legal for what is not e4m3 by its declaration: no format of GGUF files.
TEST(Quantised, WhatToConvertToIsWhatFoldersMayHold) {
  for (const std::string& name :
       {kUp + "_scale", std::string("model.norm.weight"), std::string("model.embed_tokens.weight")}) {
    for (const auto& [type, bytes] : {std::pair{"I16", 2}, {"F64", 8}, {"F8_E4M3", 1}, {"F8_E8M0", 1}}) {
      const std::string message =
          refusal([&, type = type, bytes = bytes](StoredTensors& tensors, std::string&) {
            tensors[name].type = type;
            std::size_t size = static_cast<std::size_t>(bytes);
            for (const std::int64_t side : tensors[name].shape) size *= static_cast<std::size_t>(side);
            tensors[name].bytes.resize(size);
          });
      EXPECT_TRUE(has(message, name + " (" + type + ")")) << message;
      const bool vector = name == "model.norm.weight";
      EXPECT_TRUE(message.ends_with(vector ? "; store vectors in one of F32, F16, BF16"
                                           : "; convert the file to one of F32, F16, BF16"))
          << message;
    }
  }
}

// What is said of the llama config with its quantization_config changed.
std::string config_problem(const std::function<void(json&)>& change) {
  return refusal([&](StoredTensors&, std::string& text) {
    json config = json::parse(text);
    change(config);
    text = config.dump();
  });
}

TEST(Quantised, WhatIgnoreNamesAndIsStoredWithAScaleIsTakenOutOfIgnore) {
  const auto ignoring = [](json names) {
    return config_problem([&](json& config) { config["quantization_config"]["ignore"] = std::move(names); });
  };
  const std::string q = "model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(
      ignoring({"lm_head", q})
          .ends_with("/fp8: quantization_config names layers in its ignore, and one of them is stored as "
                     "F8_E4M3 with a scale: " +
                     q + ".weight; take them out of ignore"))
      << ignoring({"lm_head", q});
  EXPECT_TRUE(has(ignoring({"lm_head", q, kUp.substr(0, kUp.rfind('.'))}),
                  "2 of them are stored as F8_E4M3 with scales: " + q + ".weight, " + kUp + "; take"));
  // Without a scale nobody could read it either way.
  const std::string message = refusal([&](StoredTensors& tensors, std::string& text) {
    json config = json::parse(text);
    config["quantization_config"]["ignore"] = {"lm_head", q};
    text = config.dump();
    tensors.erase(q + ".weight_scale");
  });
  EXPECT_TRUE(message.ends_with(q + ".weight (F8_E4M3); convert the file to one of F32, F16, BF16"))
      << message;
}

TEST(Quantised, AMissingDeclarationIsTheOneThingSaid) {
  const std::string message = config_problem([](json& config) { config.erase("quantization_config"); });
  EXPECT_TRUE(has(message,
                  "/fp8: config.json has no quantization_config that declares fp8, and 14 tensors are "
                  "stored as F8_E4M3: model.layers.0."))
      << message;
  EXPECT_TRUE(message.ends_with("or a checkpoint in F32, F16, BF16")) << message;
  EXPECT_FALSE(has(message, "not part of this architecture")) << message;
}

TEST(Quantised, OtherKindsAreRefusedByName) {
  struct Case {
    std::string pointer;  // below quantization_config
    std::string value;    // JSON; empty: erased
    std::string said;
  };
  const std::string group = "/config_groups/group_0";
  const std::vector<Case> cases = {
      {"/quant_method", "\"gptq\"", "quantization_config gptq is not supported: use the 16-bit checkpoint"},
      {"/quant_method", "\"fp8\"", "float-quantized"},
      {"/quant_method", "", "of an unnamed method"},
      {"/format", "\"pack-quantized\"", "format is \"pack-quantized\": that is not supported, only"},
      {"/format", "", "the key format is missing, it must be \"float-quantized\""},
      {"/kv_cache_scheme", R"({"num_bits": 8})", "kv_cache_scheme is {\"num_bits\":8}"},
      {"/sparsity_config", R"({"format": "sparse-24-bitmask"})", "only \"dense\" is"},
      {"/sparsity_config", R"({"a": {}})",
       "sparsity_config: the key format is missing, it must be \"dense\""},
      {"/sparsity_config", R"({"format": null, "sparsity_structure": "2:4"})", "the key format is missing"},
      {"/transform_config", R"({"config_groups": {}})", "transform_config"},
      {"/quantization_status", "\"calibration\"", "compressed and frozen are"},
      {"/unheard_of", "1", "the key unheard_of is not supported"},
      {"/config_groups/group_1", "{}", "2 groups are not supported"},
      {"/config_groups", "{}", "0 groups are not supported"},
      {"/config_groups", "3", "config_groups"},
      {group + "/targets", R"(["Linear", "Embedding"])", "only [\"Linear\"] is"},
      {group + "/output_activations", R"({"num_bits": 8})", "output_activations"},
      {group + "/input_activations", "null", "input_activations is missing"},
      {group + "/input_activations/dynamic", "false", "dynamic is false: that is not supported, only true"},
      {group + "/input_activations/strategy", "\"tensor\"", "only \"token\" is"},
      {group + "/input_activations/num_bits", "4", "num_bits is 4"},
      {group + "/weights/num_bits", "4", "num_bits is 4: that is not supported, only 8 is"},
      {group + "/weights/type", "\"int\"", "type is \"int\""},
      {group + "/weights/strategy", "\"block\"",
       "the strategy block is not supported; channel and tensor are"},
      {group + "/weights/strategy", "", "strategy is missing"},
      {group + "/weights/symmetric", "false", "symmetric is false"},
      {group + "/weights/dynamic", "true", "dynamic is true"},
      {group + "/weights/group_size", "128", "group_size is 128"},
      {group + "/weights/block_structure", "[128, 128]", "block_structure"},
      {group + "/weights/grop_size", "1", "the key grop_size is not supported (the nearest is group_size)"},
      {"/ignore", R"(["lm_head", "re:.*mlp.*"])",
       "the pattern re:.*mlp.*: that is not supported, only names"},
      {"/ignore", R"(["lm_heat"])",
       "ignores lm_heat, which is no linear layer of this model (the nearest is "
       "lm_head)"},
      {"/ignore", R"(["lm_head", "model.embed_tokens"])", "ignores model.embed_tokens"},
      {"/ignore", R"(["lm_head", "model.layers.2.mlp.up_proj"])", "ignores model.layers.2.mlp.up_proj"},
      {"/ignore", R"(["lm_head", 5])", "a list of strings"},
      {"/ignore", "[]", "a tensor is not stored as F8_E4M3: lm_head.weight (BF16)"},
  };
  for (const Case& c : cases) {
    const std::string message = config_problem([&](json& config) {
      json& quant = config["quantization_config"];
      const json::json_pointer place(c.pointer);
      if (c.value.empty())
        quant[place.parent_pointer()].erase(place.back());
      else
        quant[place] = json::parse(c.value);
    });
    EXPECT_TRUE(has(message, c.said)) << c.pointer << " " << c.value << "\n" << message;
  }
  EXPECT_TRUE(has(config_problem([](json& config) {
                    config["tie_word_embeddings"] = true;
                    config["quantization_config"]["ignore"] = json::array();
                  }),
                  "must have lm_head in ignore"));
  EXPECT_TRUE(
      has(config_problem([](json& config) { config["compression_config"] = config["quantization_config"]; }),
          "compression_config is not supported"));
  EXPECT_EQ(config_problem([](json& config) {
              config["quantization_config"]["sparsity_config"] = {{"format", "dense"}, {"ignore", {"a"}}};
            }),
            "");
  EXPECT_EQ(config_problem([](json& config) {
              json& quant = config["quantization_config"];
              quant["sparsity_config"] = json::object();
              quant["transform_config"] = json::object();
              quant["version"] = "0.10.1";
              quant["quantization_status"] = "compressed";
              quant["config_groups"]["group_0"]["format"] = "float-quantized";
              quant["config_groups"]["group_0"]["weights"]["actorder"] = nullptr;
            }),
            "");
}

TEST(Quantised, OtherFamiliesAreRefusedByName) {
  for (const char* name : {"gpt_oss", "deepseek_v3"}) {
    const auto checkpoint = checkpoint::open_checkpoint(golden(name) + "/config.json");
    ASSERT_TRUE(checkpoint.ok());
    json config = (*checkpoint)->config().raw();
    config["quantization_config"] = json::parse(testing::quantization_config(true, {"lm_head"}));
    const auto document = checkpoint::JsonDocument::parse(config.dump(), "config.json");
    ASSERT_TRUE(document.ok());
    const auto spec = read_config_spec(document->root());
    ASSERT_FALSE(spec.ok()) << name;
    EXPECT_TRUE(has(spec.error().message, "is not supported for this architecture")) << spec.error().message;
  }
}

TEST(Quantised, TheSpecSaysSo) {
  const TempFolder folder;
  write_fp8_folders(golden("llama"), folder.path(), {});
  const auto opened = checkpoint::open_checkpoint(folder.path() + "/fp8");
  ASSERT_TRUE(opened.ok());
  const auto spec = read_spec(**opened);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_TRUE(has(to_string(*spec), "linear layers in e4m3, a scale per output, 1 left out"));
  std::size_t weights = 0, scales = 0;
  for (const ExpectedWeight& weight : expected_weights(*spec)) {
    weights += weight.part == WeightPart::fp8;
    scales += weight.part == WeightPart::fp8_scale;
  }
  EXPECT_EQ(weights, 14u);
  EXPECT_EQ(scales, 14u);
}

}  // namespace
}  // namespace quire::model
