// Groups and calls follow from the config alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/golden_dir.h"
#include "model/model.h"

namespace quire::model {
namespace {

std::vector<attention::Call> calls_of(const std::string& name, Determinism level,
                                      std::vector<KvGroup>& groups) {
  auto checkpoint = checkpoint::open_checkpoint(quire::testing::golden_dir() + "/models/" + name);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  auto spec = read_spec(**checkpoint);
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  groups = kv_groups(*spec);
  KvFormat format;
  format.k_type = format.v_type = DType::bf16;
  const std::vector<KvFormat> formats(groups.size(), format);
  return attention_calls(*spec, platform::DeviceInfo{.arch = 1}, DType::f32, formats, level);
}

std::vector<std::string> names(const std::vector<attention::Call>& calls) {
  std::vector<std::string> out;
  for (const attention::Call& call : calls) out.push_back(call.name);
  return out;
}

class Groups : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(quire::testing::golden_dir() + "/models/gemma3")) FAIL() << "no golden data";
  }
  std::vector<KvGroup> groups_;
};

TEST_F(Groups, Gemma3HasAWindowAndAFullGroup) {
  const auto calls = calls_of("gemma3", Determinism::schedule_invariant, groups_);
  ASSERT_EQ(groups_.size(), 2u);
  EXPECT_EQ(groups_[0].name, "window");
  EXPECT_EQ(groups_[0].mask_width, 48);
  EXPECT_EQ(groups_[0].layers.size(), 5u);
  EXPECT_EQ(groups_[1].name, "full");
  EXPECT_EQ(names(calls),
            (std::vector<std::string>{"window.decode", "window.extend", "full.decode", "full.extend"}));
  EXPECT_EQ(calls[0].problem.mask, attention::MaskKind::window);
  EXPECT_EQ(calls[0].layers, 5);
  EXPECT_EQ(calls[3].problem.phase, attention::Phase::extend);
  EXPECT_EQ(calls[3].problem.features, 0u);
}

TEST_F(Groups, GptOssCallsHaveSinks) {
  for (const attention::Call& call : calls_of("gpt_oss", Determinism::none, groups_))
    EXPECT_EQ(call.problem.features, attention::kSink) << call.name;
}

TEST_F(Groups, LatentModelsExtendByTheLevel) {
  const auto absorbed = calls_of("deepseek_v3", Determinism::schedule_invariant, groups_);
  EXPECT_EQ(names(absorbed), (std::vector<std::string>{"latent.decode", "latent.extend"}));
  EXPECT_EQ(absorbed[1].problem.qk_dim, 576);
  EXPECT_EQ(absorbed[1].problem.v_dim, 512);
  EXPECT_EQ(absorbed[1].problem.kv_heads, 1);
  EXPECT_EQ(absorbed[1].problem.features, attention::kLatent);
  const auto dense = calls_of("deepseek_v3", Determinism::batch_invariant, groups_);
  EXPECT_EQ(names(dense), (std::vector<std::string>{"latent.decode", "mla.own", "mla.prefix"}));
  EXPECT_EQ(dense[1].problem.source, attention::KvSource::dense);
  EXPECT_EQ(dense[1].problem.qk_dim, 192);
  EXPECT_EQ(dense[1].problem.v_dim, 128);
  EXPECT_EQ(dense[1].problem.features, attention::kLse);
  EXPECT_EQ(dense[2].problem.mask, attention::MaskKind::full);
  EXPECT_EQ(dense[2].problem.kv.k_type, DType::f32);
}

}  // namespace
}  // namespace quire::model
