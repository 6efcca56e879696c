// Weights: the tensors of a checkpoint as the forward passes use them. On the CPU matrices whose stored type
// `linear` multiplies exactly (or, in GGUF files, at all) stay in the mapped file; the rest, and on a GPU
// everything, is converted once, at load, into one private buffer (matrices to LoadOptions::matrices, all
// else to f32; quantised matrices stay e4m3 everywhere, with a float per row whatever their file has):
// vectors (with Gemma's 1 + w folded in), experts stacked, gpt_oss' experts transposed and gate
// and up parted, kv_b transposed per head, 16-bit matrices with no exact product.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "model/spec.h"
#include "ops/ops.h"
#include "platform/platform.h"
#include "tensor/weight.h"

namespace quire::model {

struct MlpWeights {
  WeightView gate, up, down;
};

// What a model does not have is null or empty.
struct LayerWeights {
  const float* attn_norm = nullptr;  // [hidden]
  const float* post_attn_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* post_ffn_norm = nullptr;

  WeightView q, k, v, o;
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  const float* q_norm = nullptr;  // [qk_dim]
  const float* k_norm = nullptr;
  const float* sinks = nullptr;  // [q_heads]

  WeightView q_a, q_b, kv_a, kv_b;  // latent attention; kv_b [heads * (nope + v), latent]
  const float* q_a_norm = nullptr;
  const float* kv_a_norm = nullptr;
  WeightView up_k;  // per head [latent, nope]: q_nope into the space of the latents
  WeightView up_v;  // per head [v, latent]: a view of kv_b

  MlpWeights mlp;
  MlpWeights shared;                         // one for every token, next to the experts
  MlpWeights experts;                        // stacked
  const float* experts_gate_bias = nullptr;  // [experts, intermediate]
  const float* experts_up_bias = nullptr;
  const float* experts_down_bias = nullptr;  // [experts, hidden]
  WeightView router;
  const float* router_bias = nullptr;
  const float* router_correction = nullptr;
};

struct Weights {
  WeightView embed;
  WeightView lm_head;
  const float* final_norm = nullptr;
  std::vector<const float*> inv_freq;  // of every rope of the spec
  std::vector<LayerWeights> layers;
  std::unique_ptr<platform::Buffer> memory;  // what is private
};

// Checks as plan_weights() does, allocates once and converts with LoadOptions::threads (convert.h). What
// stays mapped borrows from the checkpoint.
Result<Weights> load_weights(const ModelSpec& spec, const checkpoint::Checkpoint& checkpoint,
                             const ops::Ops& ops, platform::Device& device, const LoadOptions& options);

}  // namespace quire::model
