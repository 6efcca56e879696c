#include "server/loop/client_words.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/golden_dir.h"
#include "quire/session.h"

namespace quire::server {
namespace {

namespace fs = std::filesystem;

TEST(ClientWords, BracketsWithFlagsGo) {
  EXPECT_EQ(client_words("use less (--max-tokens 4), or more memory (--kv-memory 2G or more)"),
            "use less, or more memory");
  EXPECT_EQ(client_words("give a prompt (-p instead of --chat): it is text"), "give a prompt: it is text");
  for (const char* same : {"", "no brackets", "a range (0 to 5) and (-3) and (a-b)", "open (--never closed",
                           "closed) (x)", "--bare"})
    EXPECT_EQ(client_words(same), same);
}

// Every refusal of a request that a real session gives: no flag is left, nor a path of this machine.
TEST(ClientWords, OfARealSession) {
  const fs::path folder = fs::path(::testing::TempDir()) / "quire_client_words";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(quire::testing::golden_dir() + "/models/llama/" + name, folder / name);
  const auto refusals = [&] {
    Options options;
    options.max_context = 80;
    options.kv_memory_bytes = 40000;
    options.page_size = 8;
    auto session = Session::open(folder.string(), options);
    EXPECT_TRUE(session.ok()) << session.error().message;
    std::vector<std::string> said;
    if (!session.ok()) return said;
    TextRequest text, chat, stops, held, most_kv, context;
    text.text = "abc";
    chat.conversation = R"({"messages":[{"role":"user","content":"a"}]})";
    for (TextRequest* ids : {&stops, &held, &most_kv, &context}) ids->ids = {1, 2};
    stops.stop = {"x"};
    held.format = AnswerFormat::json_object;
    most_kv.max_tokens = 70;
    context.ids.resize(81, 1);
    for (const TextRequest* request : {&text, &chat, &stops, &held, &most_kv, &context}) {
      const auto answer = (*session)->check(*request);
      EXPECT_FALSE(answer.ok());
      if (!answer.ok()) said.push_back(client_words(answer.error().message));
      EXPECT_EQ(said.back().find("--"), std::string::npos) << said.back();
      EXPECT_EQ(said.back().find(folder.string()), std::string::npos) << said.back();
    }
    return said;
  };
  const std::vector<std::string> said = refusals();
  ASSERT_EQ(said.size(), 6u);
  EXPECT_EQ(said[0], "the model has no tokenizer.json: give the prompt as an array of token ids");
  EXPECT_EQ(said[1], "the model has no chat template: give a prompt instead of messages");
  EXPECT_NE(said[2].find("stop strings need a tokenizer"), std::string::npos) << said[2];
  EXPECT_NE(said[3].find("an answer's form needs a tokenizer"), std::string::npos) << said[3];
  EXPECT_NE(said[4].find("new tokens or fewer, or give the KV cache more memory"), std::string::npos)
      << said[4];
  EXPECT_NE(said[5].find("over the context of 80: raise the limit or shorten it by 1"), std::string::npos)
      << said[5];
  // Files that are there and cannot be read or understood.
  std::ofstream(folder / "tokenizer.json") << "{";
  fs::create_directories(folder / "chat_template.jinja");
  EXPECT_EQ(refusals().size(), 6u);
  fs::remove(folder / "tokenizer.json");
  fs::create_directories(folder / "tokenizer.json");
  EXPECT_EQ(refusals().size(), 6u);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace quire::server
