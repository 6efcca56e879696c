// Loading: what is found, what is refused and how it is said, dummy weights, plans that hold.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/golden_dir.h"
#include "model/testing/harness.h"

namespace quire::model {
namespace {

using testing::Chunk;
using testing::Harness;
using testing::HarnessOptions;

std::string model_folder(const std::string& name) { return quire::testing::golden_dir() + "/models/" + name; }

#define NEEDS_GOLDEN(name) \
  if (!std::filesystem::exists(model_folder(name))) FAIL() << "no golden data at " << model_folder(name)

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A copy of a golden folder whose config is changed by replacing one text.
class EditedFolder {
 public:
  EditedFolder(const std::string& name, const std::string& from, const std::string& to) {
    path_ = std::filesystem::path(::testing::TempDir()) / ("quire_load_" + name);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    for (const auto& file : std::filesystem::directory_iterator(model_folder(name))) {
      if (file.path().extension() == ".safetensors" && file.path().filename() != "golden.safetensors")
        std::filesystem::copy_file(file.path(), path_ / file.path().filename());
    }
    std::string config = read_file(model_folder(name) + "/config.json");
    const std::size_t at = config.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    config.replace(at, from.size(), to);
    std::ofstream(path_ / "config.json") << config;
  }
  ~EditedFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string refusal(const std::string& path) {
  auto opened = Harness::open(path, {});
  return opened.ok() ? "" : opened.error().message;
}

TEST(Load, NamesMissingTensors) {
  NEEDS_GOLDEN("llama");
  const EditedFolder folder("llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("9 tensors are missing: model.layers.2."), std::string::npos) << message;
  EXPECT_NE(message.find("and 6 more"), std::string::npos) << message;
}

TEST(Load, NamesExtraTensors) {
  NEEDS_GOLDEN("llama");
  const EditedFolder folder("llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("9 tensors are not part of this architecture: model.layers.1."), std::string::npos)
      << message;
}

TEST(Load, NamesWrongShapes) {
  NEEDS_GOLDEN("llama");
  const EditedFolder folder("llama", "\"vocab_size\": 259", "\"vocab_size\": 260");
  const std::string message = refusal(folder.path());
  EXPECT_NE(message.find("model.embed_tokens.weight is [259, "), std::string::npos) << message;
  EXPECT_NE(message.find("not [260, "), std::string::npos) << message;
}

TEST(Load, NamesTypesThatItDoesNotUse) {
  NEEDS_GOLDEN("llama");
  for (const auto& [tensor, wanted] :
       {std::pair{"model.layers.1.mlp.up_proj.weight",
                  "a tensor is stored in a type that this build does not use: "
                  "model.layers.1.mlp.up_proj.weight (I16); convert the file to one of "},
        {"model.layers.1.input_layernorm.weight",
         "a vector is stored in a type that this build does not use for vectors: "
         "model.layers.1.input_layernorm.weight (I16); store vectors in one of F32, F16, BF16"}}) {
    const EditedFolder folder("llama", "\"vocab_size\": 259", "\"vocab_size\": 259");
    const std::string file = folder.path() + "/model.safetensors";
    std::string bytes = read_file(file);
    const std::size_t at = bytes.find("\"BF16\"", bytes.find(tensor));
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at, 6, "\"I16\" ");  // as long as it was
    std::ofstream(file, std::ios::binary) << bytes;
    const std::string message = refusal(folder.path());
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
  }
}

TEST(Load, MapsWhatItUsesInPlaceAndExpandsTheRest) {
  NEEDS_GOLDEN("llama_f32");
  auto f32 = Harness::open(model_folder("llama_f32"), {});
  ASSERT_TRUE(f32.ok()) << f32.error().message;
  auto bf16 = Harness::open(model_folder("llama"), {});
  ASSERT_TRUE(bf16.ok()) << bf16.error().message;
  auto experts = Harness::open(model_folder("gpt_oss"), {});
  ASSERT_TRUE(experts.ok()) << experts.error().message;
  for (const WeightPlan* mapped : {&(*f32)->weight_plan(), &(*bf16)->weight_plan()}) {
    EXPECT_GT(mapped->mapped_bytes, 0);
    EXPECT_LT(mapped->private_bytes, mapped->mapped_bytes / 10);  // vectors only
    EXPECT_TRUE(mapped->notes.empty());
  }
  const WeightPlan& expanded = (*experts)->weight_plan();
  EXPECT_GT(expanded.private_bytes, expanded.parameters);
  ASSERT_EQ(expanded.notes.size(), 1u);
  EXPECT_NE(expanded.notes[0].find("expanded to f32"), std::string::npos);
}

TEST(Load, AHeadThatATiedModelDoesNotReadIsNotedUnlessItIsTheEmbedding) {
  NEEDS_GOLDEN("llama_tied");
  const EditedFolder folder("llama_tied", "{", "{");
  const auto notes = [&folder] {
    auto opened = Harness::open(folder.path(), {});
    EXPECT_TRUE(opened.ok());
    return (*opened)->weight_plan().notes;
  };
  EXPECT_EQ(notes(),
            (std::vector<std::string>{"lm_head.weight is not the embedding and not read: tie_word_embeddings "
                                      "makes the embedding the output matrix"}));
  const std::string path = folder.path() + "/model.safetensors";
  std::string bytes = read_file(path);
  // Both are [259, 64] in BF16, the head first.
  constexpr std::size_t kMatrix = 259 * 64 * 2;
  const std::size_t data =
      8 + static_cast<std::size_t>(*reinterpret_cast<const std::uint64_t*>(bytes.data()));
  bytes.replace(data, kMatrix, bytes, data + kMatrix, kMatrix);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_TRUE(notes().empty());
}

TEST(Dummy, EveryFamilyRunsFromItsConfigAlone) {
  for (const std::string name : {"llama", "qwen2", "qwen3", "gemma3", "gpt_oss", "deepseek_v3"}) {
    NEEDS_GOLDEN(name);
    HarnessOptions options;
    options.load.dummy = true;
    options.load.dummy_seed = 5;
    std::vector<std::vector<float>> runs;
    for (const std::uint64_t seed : {5, 5, 6}) {
      options.load.dummy_seed = seed;
      auto opened = Harness::open(model_folder(name) + "/config.json", options);
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      runs.push_back((*opened)->step({Chunk{0, {1, 2, 3, 4, 5, 6, 7}}}));
    }
    for (const float value : runs[0]) {
      ASSERT_TRUE(std::isfinite(value)) << name;
      ASSERT_LT(std::fabs(value), 100.0f) << name;
    }
    EXPECT_EQ(runs[0], runs[1]) << name;
    EXPECT_NE(runs[0], runs[2]) << name;
  }
}

TEST(Load, SaysThatAConfigAloneHoldsNoWeights) {
  NEEDS_GOLDEN("llama");
  const std::string message = refusal(model_folder("llama") + "/config.json");
  EXPECT_TRUE(message.empty() || message.find("--load-format dummy") != std::string::npos) << message;
}

}  // namespace
}  // namespace quire::model
