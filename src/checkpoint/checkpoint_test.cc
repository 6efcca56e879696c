#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "base/golden_dir.h"
#include "checkpoint/test_files.h"
#include "checkpoint/text_settings.h"

namespace quire::checkpoint {
namespace {

using testing::safetensors;
using testing::TempFolder;

std::string problem(const std::string& path) {
  const auto checkpoint = open_checkpoint(path);
  return checkpoint.ok() ? "" : checkpoint.error().message;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<std::byte> one_tensor(std::string_view name) {
  return safetensors(
      "{\"" + std::string(name) + R"(": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8);
}

// Two shards, a in the first and b in the second, with an index.
void write_shards(const TempFolder& folder) {
  folder.write("config.json", "{}");
  folder.write("model-00001-of-00002.safetensors", one_tensor("a"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("b"));
  folder.write(
      "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
}

TEST(Checkpoint, FolderWithOneFile) {
  const TempFolder folder;
  folder.write("config.json", R"({"x": 1})");
  folder.write("model.safetensors", one_tensor("a"));
  for (const std::string& path : {folder.path(), folder.path() + "/config.json"}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->source(), Source::huggingface);
    EXPECT_TRUE((*checkpoint)->has_weights());
    ASSERT_NE((*checkpoint)->find("a"), nullptr);
    EXPECT_EQ((*checkpoint)->find("b"), nullptr);
    EXPECT_EQ((*checkpoint)->file_bytes(), static_cast<std::int64_t>(one_tensor("a").size()));
    EXPECT_EQ(*(*checkpoint)->config().integer("x", 0, 9), 1);
    (*checkpoint)->release(*(*checkpoint)->find("a"));
  }
}

TEST(Checkpoint, ConfigAlone) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("other.json", "{}");
  for (const std::string& path :
       {folder.path(), folder.path() + "/config.json", folder.path() + "/other.json"}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_FALSE((*checkpoint)->has_weights());
    EXPECT_EQ((*checkpoint)->file_bytes(), 0);
    EXPECT_EQ((*checkpoint)->folder(), folder.path());
  }
}

TEST(Checkpoint, MissingThingsAreNamedWithTheNearest) {
  const TempFolder folder;
  EXPECT_TRUE(has(problem(folder.path()), "no config.json"));
  folder.write("model.gguf", "GGUF");
  EXPECT_TRUE(has(problem(folder.path()), "model.gguf: name the file itself"));
  EXPECT_TRUE(has(problem(folder.path() + "/modle.gguf"), "did you mean " + folder.path() + "/model.gguf?"));
  EXPECT_TRUE(has(problem(folder.path() + "/none/x"), "there is no"));
  EXPECT_TRUE(has(problem(""), "path is empty"));
  EXPECT_TRUE(has(problem(folder.path() + "/model.gguf"), "ends inside the version"));
  folder.write("x.safetensors", "abcdefgh");
  EXPECT_TRUE(has(problem(folder.path() + "/x.safetensors"), "name the folder"));
  folder.write("empty.gguf", "");
  EXPECT_TRUE(has(problem(folder.path() + "/empty.gguf"), "is empty"));
  EXPECT_TRUE(has(problem("/dev/null"), "not a regular file"));
  folder.write("config.json", "{");
  EXPECT_TRUE(has(problem(folder.path()), "config.json: not valid JSON"));
}

TEST(Checkpoint, ShardsAgreeWithTheIndex) {
  const TempFolder folder;
  write_shards(folder);
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->tensors().size(), 2u);
  EXPECT_NE((*checkpoint)->find("b"), nullptr);
}

TEST(Checkpoint, MissingExtraAndStaleShardsAreNamed) {
  const TempFolder folder;
  write_shards(folder);
  folder.write("model-00003-of-00003.safetensors", one_tensor("c"));
  EXPECT_TRUE(has(problem(folder.path()), "model-00003-of-00003.safetensors"));
  std::filesystem::remove(folder.path() + "/model-00003-of-00003.safetensors");
  folder.write("model-00002-of-00002.safetensors", one_tensor("c"));
  EXPECT_TRUE(has(problem(folder.path()), "the tensor c, which model.safetensors.index.json does not name"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("a"));
  EXPECT_TRUE(has(problem(folder.path()), "places in model-00001-of-00002.safetensors") ||
              has(problem(folder.path()), "does not name"));
  std::filesystem::remove(folder.path() + "/model-00002-of-00002.safetensors");
  EXPECT_TRUE(has(problem(folder.path()), "names model-00002-of-00002.safetensors, which is not in"));
  folder.write("model.safetensors", one_tensor("a"));
  EXPECT_TRUE(has(problem(folder.path()), "holds both"));
  std::filesystem::remove(folder.path() + "/model.safetensors");
  std::filesystem::remove(folder.path() + "/model.safetensors.index.json");
  EXPECT_TRUE(has(problem(folder.path()), "but no model.safetensors.index.json"));
}

// As an interrupted download into a cache of links leaves a folder.
TEST(Checkpoint, LinksThatLeadNowhereAreNamed) {
  const TempFolder folder;
  write_shards(folder);
  const auto dead = [&](const std::string& name) {
    const std::string path = folder.path() + "/" + name;
    std::filesystem::remove(path);
    std::filesystem::create_symlink("../../blobs/abc", path);
    const std::string said = problem(name == "a.gguf" ? path : folder.path());
    EXPECT_EQ(said, path + " is a link to ../../blobs/abc, which is not there: fetch the file");
    std::filesystem::remove(path);
  };
  dead("model-00002-of-00002.safetensors");
  dead("model.safetensors.index.json");
  std::filesystem::remove(folder.path() + "/model-00001-of-00002.safetensors");
  dead("model.safetensors");
  dead("a.gguf");
  dead("config.json");
  // One that leads somewhere is the file.
  folder.write("blob", one_tensor("a"));
  folder.write("config.json", "{}");
  std::filesystem::create_symlink("blob", folder.path() + "/model.safetensors");
  EXPECT_EQ(problem(folder.path()), "");
}

TEST(Checkpoint, TensorsThatTheIndexAloneKnows) {
  const TempFolder folder;
  write_shards(folder);
  folder.write(
      "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",)"
      R"( "d": "model-00002-of-00002.safetensors"}})");
  EXPECT_TRUE(has(problem(folder.path()),
                  "places the tensor d in model-00002-of-00002.safetensors, which does not hold it"));
}

TEST(Checkpoint, ShardNamesCannotLeaveTheFolder) {
  for (const std::string_view name :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "", ".x.safetensors", "x.bin",
        "a\\\\b.safetensors", "x\\u0000.safetensors"}) {
    const TempFolder folder;
    folder.write("config.json", "{}");
    folder.write("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"" + std::string(name) + "\"}}");
    EXPECT_TRUE(has(problem(folder.path()), "not the plain name")) << name << problem(folder.path());
  }
}

TEST(Checkpoint, RealGguf) {
  const std::string path = std::string(QUIRE_SOURCE_DIR) + "/.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) FAIL() << "the real model was not fetched";
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->source(), Source::gguf);
  EXPECT_EQ((*checkpoint)->gguf().metadata().size(), 33u);
  EXPECT_EQ((*checkpoint)->tensors().size(), 272u);
  EXPECT_EQ((*checkpoint)->file_bytes(), 98362432);
  EXPECT_EQ((*checkpoint)->find("token_embd.weight")->format, WeightFormat::q8_0);
  EXPECT_EQ((*checkpoint)->gguf().strings("tokenizer.ggml.tokens")->size(), 49152u);
  const auto settings = read_text_settings(**checkpoint);
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  ASSERT_EQ(settings->templates.size(), 1u);
  EXPECT_EQ(settings->bos_token, "<|im_start|>");
  EXPECT_EQ(settings->eos_token, "<|im_end|>");
  EXPECT_EQ(settings->add_bos, false);
  EXPECT_EQ(read_generation_defaults(**checkpoint)->eos_ids, (std::vector<std::int64_t>{2}));
}

TEST(Checkpoint, EveryGoldenOpens) {
  const std::string golden = quire::testing::golden_dir();
  if (golden.empty()) FAIL() << "no golden data";
  int opened = 0;
  for (const char* kind : {"models", "gguf"}) {
    if (!std::filesystem::exists(golden + "/" + kind)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(golden + "/" + kind)) {
      if (!entry.is_directory()) continue;
      const std::string path =
          entry.path().string() + (std::string_view(kind) == "gguf" ? "/model.gguf" : "");
      EXPECT_EQ(problem(path), "") << path;
      ++opened;
    }
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace quire::checkpoint
