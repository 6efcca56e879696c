// Tensor names and shapes: which tensors a model of a given spec has, what the file calls them, and which
// others a file may hold without harm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace quire::model {

enum class WeightId : std::uint8_t {
  embed,
  final_norm,
  lm_head,  // once per model
  attn_norm,
  post_attn_norm,
  ffn_norm,
  post_ffn_norm,  // once per layer, all below
  q,
  k,
  v,
  o,
  q_bias,
  k_bias,
  v_bias,
  o_bias,
  q_norm,
  k_norm,
  sinks,
  q_a,
  q_a_norm,
  q_b,
  kv_a,
  kv_a_norm,
  kv_b,  // latent; kv_a rows: latent | rope
         // kv_b rows: per head nope | v
  gate,
  up,
  down,  // dense MLP
  router,
  router_bias,
  router_correction,
  experts_gate_up,
  experts_gate_up_bias,
  experts_down,
  experts_down_bias,  // stacked; see below
  expert_gate,
  expert_up,
  expert_down,  // one tensor per expert
  shared_gate,
  shared_up,
  shared_down,
};
std::string_view to_string(WeightId id);

// How a tensor is stored in a model whose spec says `quant`.
enum class WeightPart : std::uint8_t {
  whole,      // as in any other
  fp8,        // e4m3, to be multiplied by
  fp8_scale,  // its scales: [outputs, 1], or one (a scalar will do) for the matrix
};

// Stacked experts (gpt_oss in Hugging Face folders) lie [expert, in, out]: transposed against every other
// matrix, which is [out, in]. In gate_up the outputs alternate: gate 0, up 0, gate 1, up 1, ...
struct ExpectedWeight {
  WeightId id = WeightId::embed;
  std::int32_t layer = -1;
  std::int32_t expert = -1;
  std::string name;                 // in this file kind
  std::vector<std::int64_t> shape;  // outermost first
  WeightPart part = WeightPart::whole;
};

// Every tensor that a model of this spec must have, model first, then layer by layer.
std::vector<ExpectedWeight> expected_weights(const ModelSpec& spec);

// The name of one of them.
std::string weight_name(const ModelSpec& spec, WeightId id, std::int32_t layer = -1,
                        std::int32_t expert = -1);

// Of "x.weight": "x", as configs name layers.
std::string_view module_name(std::string_view weight_name);
// Whether spec.quant, which must be there, leaves this layer out.
bool is_quant_ignored(const ModelSpec& spec, std::string_view module);

// Tensors that may be there and are not read: rotary buffers of old checkpoints, a stray lm_head of a tied
// model, multi-token prediction layers behind the last layer, GGUF's rope_freqs (it is in the spec).
bool is_ignored_tensor(const ModelSpec& spec, std::string_view name);

}  // namespace quire::model
