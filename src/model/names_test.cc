#include "model/names.h"

#include <gtest/gtest.h>

#include <set>

namespace quire::model {
namespace {

ModelSpec deepseek() {
  ModelSpec spec;
  spec.family = Family::deepseek_v3;
  spec.hidden = 8;
  spec.vocab = 16;
  spec.intermediate = 12;
  spec.q_heads = spec.kv_heads = 2;
  spec.qk_dim = 6;
  spec.v_dim = 4;
  spec.latent = LatentSpec{0, 10, 4, 2, 4, 1e-6};
  spec.moe = MoeSpec{};
  spec.moe->experts = 4;
  spec.moe->intermediate = 3;
  spec.layers.resize(2);
  spec.layers[1].moe = true;
  return spec;
}

TEST(Names, ExpectedTensorsAreUniqueAndShaped) {
  const ModelSpec spec = deepseek();
  std::set<std::string> names;
  for (const ExpectedWeight& weight : expected_weights(spec)) {
    EXPECT_TRUE(names.insert(weight.name).second) << weight.name;
    EXPECT_EQ(weight.name, weight_name(spec, weight.id, weight.layer, weight.expert));
    for (const std::int64_t size : weight.shape) EXPECT_GT(size, 0) << weight.name;
  }
  EXPECT_TRUE(names.contains("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.mlp.experts.3.down_proj.weight"));
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_FALSE(names.contains("model.layers.0.self_attn.q_a_proj.weight"));
}

TEST(Names, WhatMayBeThereUnread) {
  ModelSpec spec = deepseek();
  EXPECT_TRUE(is_ignored_tensor(spec, "model.layers.2.embed_tokens.weight"));
  EXPECT_TRUE(is_ignored_tensor(spec, "model.layers.10.mlp.gate.weight"));
  EXPECT_FALSE(is_ignored_tensor(spec, "model.layers.1.extra.weight"));
  EXPECT_FALSE(is_ignored_tensor(spec, "model.layers.x.weight"));
  EXPECT_TRUE(is_ignored_tensor(spec, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(is_ignored_tensor(spec, "lm_head.weight"));
  spec.tied = true;
  EXPECT_TRUE(is_ignored_tensor(spec, "lm_head.weight"));
  spec.family = Family::llama;
  EXPECT_FALSE(is_ignored_tensor(spec, "model.layers.2.embed_tokens.weight"));
}

TEST(Names, NormsDependOnTheFamily) {
  ModelSpec spec;
  EXPECT_EQ(weight_name(spec, WeightId::ffn_norm, 3), "model.layers.3.post_attention_layernorm.weight");
  spec.post_norms = true;
  EXPECT_EQ(weight_name(spec, WeightId::ffn_norm, 3), "model.layers.3.pre_feedforward_layernorm.weight");
  EXPECT_EQ(weight_name(spec, WeightId::post_attn_norm, 3), "model.layers.3.post_attention_layernorm.weight");
  spec.source = checkpoint::Source::gguf;
  EXPECT_EQ(weight_name(spec, WeightId::post_ffn_norm, 3), "blk.3.post_ffw_norm.weight");
  EXPECT_EQ(weight_name(spec, WeightId::embed), "token_embd.weight");
}

}  // namespace
}  // namespace quire::model
