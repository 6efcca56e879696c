// ModelSpec: what a checkpoint says about its model, in one declarative, printable value. Made once by
// read_spec from config.json (published and current styles alike) or GGUF metadata; never changed after.
// What Quire does not implement is refused here by name: nothing in a config is silently ignored.
//
// Tensor shapes that follow from it are in names.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/contract.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "model/rope.h"
#include "tensor/dtype.h"
#include "tensor/kv_format.h"

namespace quire::model {

// One straight-line forward each. `llama` also serves mistral, qwen2 and qwen3: they differ by the flags
// of the spec only.
enum class Family : std::uint8_t { llama, gemma3, gpt_oss, deepseek_v3 };
std::string_view to_string(Family family);

enum class Activation : std::uint8_t { silu, gelu_tanh, swiglu_clamped };
std::string_view to_string(Activation activation);

// Layers that see the same keys and share a KV group: block tables and page release are per group.
struct GroupSpec {
  std::string name;  // "full", "window", "latent"
  attention::MaskKind mask = attention::MaskKind::causal;
  std::int32_t window = 0;           // keys, self included; 0 for causal
  std::vector<std::int32_t> layers;  // ascending layer numbers
};

struct LayerSpec {
  std::int32_t group = 0;  // index into ModelSpec::groups
  std::int32_t index_in_group = 0;
  std::int32_t rope = 0;  // index into ModelSpec::ropes
  bool moe = false;
};

// Latent attention (deepseek). The cache row is latent kv_lora_rank | rope rope_dim, one per token.
struct LatentSpec {
  std::int32_t q_lora_rank = 0;  // 0: q is projected directly
  std::int32_t kv_lora_rank = 0;
  std::int32_t nope_dim = 0;
  std::int32_t rope_dim = 0;
  std::int32_t v_dim = 0;
  double norm_eps = 1e-6;  // of the norms on the latents, whatever the model's own epsilon
};

enum class Routing : std::uint8_t {
  softmax_chosen,   // top_k of the logits; weights = softmax over the chosen logits
  sigmoid_grouped,  // s = sigmoid(logits); chosen by s + correction: a group's score is the sum of its two
                    // best, top_groups groups stay, the others count as -inf; weights = s of the chosen
};
std::string_view to_string(Routing routing);

struct MoeSpec {
  Routing routing = Routing::softmax_chosen;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t intermediate = 0;  // of one expert
  std::int32_t groups = 1;
  std::int32_t top_groups = 1;
  bool normalise = false;                // weights divided by their sum (+ 1e-20)
  double scale = 1.0;                    // then multiplied by this
  std::int32_t shared_intermediate = 0;  // one dense MLP for every token next to the experts; 0: none
  bool biases = false;                   // router and experts have biases
};

// Matrices of linear layers stored as e4m3 with float scales beside them (compressed-tensors'
// "float-quantized"), made for activations that are rounded to e4m3 too, each token by a scale of its own.
struct QuantSpec {
  bool per_row = true;               // a scale for every output; false: one for the whole matrix
  std::vector<std::string> ignored;  // sorted: layers that are stored as without quantisation ("lm_head")
};

struct ModelSpec {
  std::string architecture;  // as the file says: "LlamaForCausalLM", GGUF "llama"
  Family family = Family::llama;
  checkpoint::Source source = checkpoint::Source::huggingface;  // decides the tensor names
  DType dtype = DType::f32;  // the checkpoint's own compute type; GGUF: f32

  std::int32_t vocab = 0;
  std::int32_t hidden = 0;
  std::int32_t intermediate = 0;  // of dense layers
  std::int32_t q_heads = 0;
  std::int32_t kv_heads = 0;  // latent: equals q_heads (of the expanded form)
  std::int32_t qk_dim = 0;    // latent: nope_dim + rope_dim
  std::int32_t v_dim = 0;
  std::int64_t max_context = 0;

  double norm_eps = 0.0;
  bool norm_plus_one = false;  // norms multiply by (1 + w); false when the file stores 1 + w
  double embed_scale = 1.0;    // embeddings are multiplied by it (float32)
  bool tied = false;           // the output matrix is the embedding; a stray lm_head is not used
  Activation activation = Activation::silu;
  double swiglu_alpha = 1.702;  // swiglu_clamped: g = min(gate, limit), u = clamp(up, -limit, limit),
  double swiglu_limit = 7.0;    //   (u + 1) * g * sigmoid(alpha * g)

  double attention_scale = 0.0;    // of q . k, yarn's share included
  double attention_softcap = 0.0;  // 0: none
  double final_softcap = 0.0;      // on the logits; 0: none
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;     // RMS norm per head on q and k, before rope
  bool post_norms = false;  // a norm after attention and after the MLP, before the residual sum
  bool sinks = false;       // one learned logit per head joins the softmax's denominator

  std::optional<LatentSpec> latent;
  std::optional<MoeSpec> moe;
  std::optional<QuantSpec> quant;
  std::vector<RopeSpec> ropes;
  std::vector<GroupSpec> groups;  // in order of their first layer; none is empty
  std::vector<LayerSpec> layers;
};

// Several lines, every field that applies; equal specs print the same.
std::string to_string(const ModelSpec& spec);

// What one layer keeps per token: latent models one row of kv_lora_rank + rope_dim, V its first part.
KvLayerShape kv_layer_shape(const ModelSpec& spec);

Result<ModelSpec> read_spec(const checkpoint::Checkpoint& checkpoint);

// config.json alone, for `quire backends` and tests; read_spec calls it for Hugging Face folders.
Result<ModelSpec> read_config_spec(const checkpoint::JsonView& config);

// "LlamaForCausalLM, MistralForCausalLM, ...; GGUF: llama, ..." for messages and docs.
std::string supported_architectures();

}  // namespace quire::model
