// Ops: everything a forward pass does besides attention. One implementation per platform (ops/cpu/, ...);
// all work is put on a stream, nothing is computed on return, nothing allocates after make_ops.
//
// Views are device memory ([rows, cols], rows may be strided). Activations are float32 on the CPU, float32 or
// bf16 (by the view's dtype, mixed at will) on a CUDA device; norms, biases and scales are float32. Every
// struct is plain data captured by value, so a recorded call replays over the same addresses: row counts
// are part of the recording (a bucket), lengths and tokens are read on the device.
// Rows do not depend on their number: at level schedule_invariant the bits of a row of any output depend
// on that row's inputs only, whatever the other rows, their count and the threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/determinism.h"
#include "platform/platform.h"
#include "tensor/kv_format.h"
#include "tensor/tensor_view.h"
#include "tensor/weight.h"

namespace quire::ops {

// ---- the step's inputs, resolved on the device ----------------------------------------------------

inline constexpr int kMaxGroups = 4;

// What the device knows of every running sequence: arrays over slots. Slot 0 is padding and never moves.
struct SequenceState {
  std::int32_t* length = nullptr;         // [slots] tokens whose KV is valid
  std::int32_t* last_token = nullptr;     // [slots] the last sampled token
  std::int32_t* prompt_length = nullptr;  // [slots] tokens before the first sampled one
  std::int32_t* history = nullptr;        // [slots, history_stride] tokens so far: prompt, then output
  std::int64_t history_stride = 0;
};

struct TableDelta {  // one new (or released: page 0) table entry
  std::int32_t group = 0;
  std::int32_t slot = 0;
  std::int32_t index = 0;
  std::uint32_t page = 0;
};

// One row of the step: `q_len` tokens of one slot. Uploaded to a fixed buffer.
struct StepRow {
  std::int32_t slot = 0;  // 0: a padded row
  std::int32_t q_len = 0;
  std::int32_t q_begin = 0;   // first token row of the step
  std::int32_t literal = -1;  // index of its first token in `literals`; -1: the last output of the slot
};

struct StepGroup {                      // per KV group; outputs of begin_step
  std::uint32_t* slot_table = nullptr;  // [slots, table_stride], kept between steps
  std::uint32_t* row_table = nullptr;   // [batch, table_stride], gathered for this step's rows
  std::int64_t table_stride = 0;
  std::int32_t page_size = 0;
  std::int64_t* write_slot = nullptr;  // [total_q] page * P + offset; 0 for padded tokens
};

// begin_step: applies table deltas, then for every row r and token t of it:
//   position = length[slot] + t;  token = literal or last_token[slot];  history[slot][position] = token
//   kv_lens[r] = length[slot] + q_len (padded rows: padded_kv_len);  write_slot from the table.
// tokens >= total of the rows up to total_q are padding: token 0, position 0, write_slot 0.
struct BeginStep {
  SequenceState state;
  const StepRow* rows = nullptr;  // [batch], device
  const std::int32_t* literals = nullptr;
  const TableDelta* deltas = nullptr;
  const std::int32_t* delta_count = nullptr;  // device: one int
  std::int32_t batch = 0;
  std::int32_t total_q = 0;
  std::int32_t padded_kv_len = 0;
  std::int32_t group_count = 0;
  StepGroup groups[kMaxGroups];
  std::int32_t* tokens = nullptr;     // [total_q]
  std::int32_t* positions = nullptr;  // [total_q]
  std::int32_t* q_offsets = nullptr;  // [batch + 1]
  std::int32_t* kv_lens = nullptr;    // [batch]
};

// end_step: length[slot] += q_len for every row (after all layers and sampling of the step).
struct EndStep {
  SequenceState state;
  const StepRow* rows = nullptr;
  std::int32_t batch = 0;
};

// ---- dense operations -------------------------------------------------------------------------------

// y[r] = x[r] of the table, times scale. Any weight format that linear takes.
struct Embed {
  WeightView table;                      // [vocab, hidden]
  const std::int32_t* tokens = nullptr;  // [rows of y]
  float scale = 1.0f;
  TensorView y;  // [rows, hidden]
};

struct GatherRows {  // y[i] = x[index[i]]
  TensorView x;
  const std::int32_t* index = nullptr;  // [rows of y]
  TensorView y;
};

// y = x, same shape, rank 2 or 3. Any strides, last axis dense; an axis of x with stride 0 repeats (one rope
// row for all heads).
struct Copy {
  TensorView x;
  TensorView y;
};

// if add: x += add (in place). y = x / rms(x) * weight; y may be x when add is empty. With `heads` > 1 in a
// rank-3 view the norm is over the last axis of every head.
struct RmsNorm {
  TensorView x;
  TensorView add;                 // data null: none
  const float* weight = nullptr;  // [cols]; Gemma's 1 + w is folded in at load
  float eps = 0.0f;
  TensorView y;  // data null: only the add
};

// What a product may do to its activation rows; the model says it, for it says what it was made for.
enum class RowRounding : std::uint8_t {
  none,  // only what the product's own line of linear_formats() says
  e4m3,  // by fp8_e4m3 weights: also to e4m3 with one scale a row, its largest magnitude / 448
};

// y_i = x W_i^T + b_i for up to kMaxTargets weights that share the input: x is read, and rounded where the
// weight's product rounds it, once. All weights have the same cols.
//
// x_rounding is a permission, not an order: where rounding gains nothing, or no kernel takes it, x stays as
// it is, so that no result is rougher than the rounding. A row of zeros gives zeros; one that holds NaN or an
// infinity is NaN in every output, so that nothing is hidden. The CPU never uses it. CUDA does with more than
// 16 rows where cuBLASLt has the product (LinearFormat::rounded_activation): below that the weights' way from
// memory is all that counts. A row's bits then depend on how many rows there are, as run_to_run has it.
inline constexpr int kMaxTargets = 4;
struct LinearTarget {
  WeightView weight;
  const float* bias = nullptr;  // [rows of the weight] or null
  TensorView y;                 // [rows of x, rows of the weight]
};
struct Linear {
  TensorView x;
  LinearTarget targets[kMaxTargets];
  int target_count = 0;
  RowRounding x_rounding = RowRounding::none;
};

// y[t, h] = x[t, h] W_h^T: one matrix per head (weight.experts = heads). x [rows, heads, in], y [rows, heads,
// out].
struct HeadLinear {
  TensorView x;
  WeightView weight;
  TensorView y;
};

enum class Activation : std::uint8_t {
  silu,          // silu(gate) * up
  gelu_tanh,     // gelu_tanh(gate) * up
  swiglu_clamp,  // gpt-oss: gate = min(gate, limit), up = clamp(up, +-limit); (up + 1) * gate * sigmoid(1.702
                 // gate)
};
struct GatedActivation {
  Activation kind = Activation::silu;
  float limit = 0.0f;
  TensorView gate;  // [rows, n]
  TensorView up;
  TensorView y;  // may be gate
};

// cos and sin of every token's angles, once per step and rope: angle = float(position) * inv_freq, as
// float32 products (that is what transformers does); times attention_factor.
struct RopeAngles {
  const std::int32_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;          // [rotary_dim / 2], device
  float attention_factor = 1.0f;
  std::int32_t rotary_dim = 0;
  std::int64_t rows = 0;
  float* cos_sin = nullptr;  // [rows, rotary_dim]: cosines, then sines
};

// Rotates q and k in place (after an optional RMS norm per head) and writes K and V to the cache in its
// format. rotary dims start at *_rope_offset inside a head; interleaved: pairs (2i, 2i+1), else (i, i +
// rotary/2). A token whose write_slot is 0 writes to page 0 (padding). Latent rows: v.data is null, k is the
// whole row.
struct RopeAndKvWrite {
  TensorView q;                   // [rows, q_heads, dim]
  TensorView k;                   // [rows, kv_heads, dim]
  TensorView v;                   // [rows, kv_heads, v_dim] or empty
  const float* q_norm = nullptr;  // [dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0.0f;
  const float* cos_sin = nullptr;  // [rows, rotary_dim] of RopeAngles; null: no rotation
  std::int32_t rotary_dim = 0;
  std::int32_t q_rope_offset = 0;
  std::int32_t k_rope_offset = 0;
  bool interleaved = false;
  const std::int64_t* write_slot = nullptr;  // [rows]
  KvView kv;
};

// out[i] = the cache row of key key_begin[s] + i (decoded to out_type), for sequence s and i in [0, key_end -
// key_begin): gathers a stretch of a latent prefix. Sequence s writes from token row out_offsets[s] on.
struct KvGather {
  KvView kv;
  std::int32_t dim = 0;  // of the K row
  const std::uint32_t* block_table = nullptr;
  std::int64_t table_stride = 0;
  std::int32_t batch = 0;
  const std::int32_t* key_begin = nullptr;    // [batch]
  const std::int32_t* key_end = nullptr;      // [batch]
  const std::int64_t* out_offsets = nullptr;  // [batch]
  void* out = nullptr;                        // [*, dim] dense
  DType out_type = DType::f32;                // f32 on the CPU; bf16 and f16 too on a CUDA device
};

// The first `tokens` tokens of page `from` of a KV group, to page `to`: K, V and scales of all its layers.
struct PageCopyLayer {
  KvView kv;
  std::int32_t kv_heads = 0;
  std::int32_t k_dim = 0;
  std::int32_t v_dim = 0;  // 0: V is a part of K's row
};
struct PageCopy {
  const PageCopyLayer* layers = nullptr;  // [layer_count], host memory that outlives the stream's work
  std::int32_t layer_count = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::int32_t tokens = 0;
};

// KV rows to other places of the same group, K, V and scales of all its layers: slot from[i] (page * P +
// offset) to slot to[i], one after the other in the order of i, so a row may go where an earlier one came
// from (accepted tokens of a tree that close up).
struct MoveRows {
  const PageCopyLayer* layers = nullptr;  // as in PageCopy
  std::int32_t layer_count = 0;
  const std::int64_t* from = nullptr;  // [rows], device
  const std::int64_t* to = nullptr;    // [rows], device
  std::int32_t rows = 0;
};

// ---- mixture of experts ------------------------------------------------------------------------------

enum class RouterKind : std::uint8_t {
  softmax_top_k,        // softmax over all, top k (renormalised when `renormalise`)
  top_k_softmax,        // top k logits, softmax over them (gpt-oss)
  sigmoid_group_top_k,  // DeepSeek-V3: sigmoid + correction bias chooses (best two per group, top groups,
                        // then top k; refused groups get -inf), weights are the sigmoids, renormalised,
                        // scaled
};
struct RouterSpec {
  RouterKind kind = RouterKind::softmax_top_k;
  std::int32_t experts = 0;
  std::int32_t top_k = 0;
  std::int32_t groups = 1;
  std::int32_t top_groups = 1;
  bool renormalise = false;
  float scaling = 1.0f;
};
struct Route {
  RouterSpec spec;
  TensorView logits;                       // [rows, experts]
  const float* correction_bias = nullptr;  // [experts] or null
  std::int32_t* expert = nullptr;          // [rows, top_k]
  float* weight = nullptr;                 // [rows, top_k]
};
// y[t] = sum_k weight[t, k] * down_e(act(gate_e(x), up_e(x))), in the order of k. No host round trip.
struct MoeMlp {
  TensorView x;  // [rows, hidden]
  const std::int32_t* expert = nullptr;
  const float* weight = nullptr;
  std::int32_t top_k = 0;
  WeightView gate, up, down;         // [experts, inter, hidden], ..., [experts, hidden, inter]
  const float* gate_bias = nullptr;  // [experts, inter] or null
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [experts, hidden] or null
  Activation kind = Activation::silu;
  float limit = 0.0f;
  TensorView y;
};

// ---- logits -------------------------------------------------------------------------------------------

struct SoftcapScale {  // x = cap * tanh(scale * x / cap), or x * scale when cap is 0
  TensorView x;
  float scale = 1.0f;
  float cap = 0.0f;
};

inline constexpr int kMaxLogitBias = 1024;
struct LogitBias {
  std::int32_t token = 0;
  float value = 0.0f;
};
// What a sequence asked for; uploaded to [slots] when it is admitted.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy, ties to the lower id
  std::int32_t top_k = 0;    // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t sequence_index = 0;  // keys the draw with the seed
  std::int32_t bias_count = 0;
};
// Order: penalties, bias, mask, temperature, top-k, top-p, min-p, draw (Philox4x32-10 keyed by seed, sequence
// index, token index = length - prompt_length + ...: the number of tokens sampled before). Writes the token
// to out_token[i], to last_token[slot] and to history[slot][length + q_len]. The logits stay as they are.
// A row whose logits hold NaN or +inf, or nothing but -inf, or nothing else where the mask allows a token,
// has no next token: out_token[i] is -1, and the state gets token 0, so that a step already on its way reads
// a legal one. A mask row has bit t % 32 of word t / 32 set for every token t that may be drawn.
struct Sample {
  SequenceState state;
  TensorView logits;                        // [rows, vocab]
  const std::int32_t* row_index = nullptr;  // [rows] which StepRow each logits row belongs to; -1: padding
  const StepRow* step_rows = nullptr;
  const SamplingParams* params = nullptr;  // [slots]
  const LogitBias* bias = nullptr;         // [slots, kMaxLogitBias]
  std::int32_t* out_token = nullptr;       // [rows]
  const std::int32_t* mask_row = nullptr;  // [rows] a row of `masks`, or -1: no mask. Null: no row has one
  const std::uint32_t* masks = nullptr;    // [*, mask_words(vocab)]
};
inline constexpr std::int64_t mask_words(std::int64_t vocab) { return (vocab + 31) / 32; }

// For scoring: of every logits row the log-probability of target[i] (-1: none -> NaN), the argmax, and the
// top n. The argmax of a row that Sample would refuse is -1, and its other results mean nothing.
struct Score {
  TensorView logits;
  const std::int32_t* target = nullptr;  // [rows]
  float* logprob = nullptr;              // [rows]
  std::int32_t* argmax = nullptr;        // [rows]
  std::int32_t top_n = 0;
  std::int32_t* top_id = nullptr;  // [rows, top_n]
  float* top_logprob = nullptr;    // [rows, top_n]
};

// ---- the interface --------------------------------------------------------------------------------------

struct OpsLimits {
  std::int64_t max_rows = 0;          // token rows of a step
  std::int64_t max_cols = 0;          // widest input of a linear; of head_linear, heads x in
  std::int64_t max_expert_inter = 0;  // 0: no experts
  std::int64_t max_top_k = 0;
  std::int64_t max_hidden = 0;
  std::int64_t max_logit_rows = 0;
  std::int64_t vocab = 0;
  std::int32_t threads = 1;
};

// One line of the table of products: which weight formats `linear` multiplies, with which library, and how
// exact: "ggml dots" with activations "q8_k" / "ggml tiles" with "f32".
struct LinearFormat {
  WeightFormat format;
  std::string_view library;
  std::string_view activation;  // "f32", "q8_0", "f16", ...
  Determinism determinism;
  std::string_view rounded_activation = "";  // with RowRounding::e4m3; empty: that changes nothing
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;  // "cpu (avx2)"
  virtual Determinism determinism() const = 0;
  virtual std::span<const LinearFormat> linear_formats() const = 0;
  virtual std::int64_t workspace_bytes(const OpsLimits& limits) const = 0;
  // Before any op; the memory stays the caller's.
  virtual void set_workspace(void* data, std::int64_t bytes, const OpsLimits& limits) = 0;

  virtual void begin_step(const BeginStep& args, platform::Stream& stream) = 0;
  virtual void end_step(const EndStep& args, platform::Stream& stream) = 0;
  virtual void embed(const Embed& args, platform::Stream& stream) = 0;
  virtual void gather_rows(const GatherRows& args, platform::Stream& stream) = 0;
  virtual void copy(const Copy& args, platform::Stream& stream) = 0;
  virtual void rms_norm(const RmsNorm& args, platform::Stream& stream) = 0;
  virtual void linear(const Linear& args, platform::Stream& stream) = 0;
  virtual void head_linear(const HeadLinear& args, platform::Stream& stream) = 0;
  virtual void gated_activation(const GatedActivation& args, platform::Stream& stream) = 0;
  virtual void rope_angles(const RopeAngles& args, platform::Stream& stream) = 0;
  virtual void rope_and_kv_write(const RopeAndKvWrite& args, platform::Stream& stream) = 0;
  virtual void kv_gather(const KvGather& args, platform::Stream& stream) = 0;
  // In terms of Stream::copy, piece by piece; a platform that can do it in one launch does. On one stream
  // copies follow each other: a page may be the source of one and the target of a later one.
  virtual void page_copy(const PageCopy& args, platform::Stream& stream);
  virtual void move_rows(const MoveRows& args, platform::Stream& stream) = 0;
  virtual void route(const Route& args, platform::Stream& stream) = 0;
  virtual void moe_mlp(const MoeMlp& args, platform::Stream& stream) = 0;
  virtual void softcap_scale(const SoftcapScale& args, platform::Stream& stream) = 0;
  virtual void sample(const Sample& args, platform::Stream& stream) = 0;
  virtual void score(const Score& args, platform::Stream& stream) = 0;
};

// The implementation of the device's platform.
std::unique_ptr<Ops> make_ops(platform::Device& device);

// What make_ops gives for such a device, known without it and in every build.
struct OpsInfo {
  std::string name;
  Determinism determinism;
};
OpsInfo ops_info(const platform::DeviceInfo& device);

}  // namespace quire::ops

#include "ops/page_pieces.h"  // Ops::page_copy
