// The attention contract: what every backend computes and the data it is given. docs/ATTENTION.md is the
// long form. The data types are C-compatible: standard layout, copied as bytes. Those that cross between
// engine and backend on their own (Problem, StepShape, SparseIndex, Args, Limits; KvFormat and KvView of
// tensor/) start with their size, so that either side can tell which fields the other knows: new fields go at
// the end. What has no size is frozen as it is: elements of arrays (PrefixGroup), what is passed by value
// (PlanBuffer) and plain parts of the others (KvStrides, KvSection). contract.cc asserts all of this.
//
// Mathematics. Sequence i of a step has q_len new rows and kv_len keys, the new ones included (already in
// the cache). Row r has key index p = kv_len - q_len + r. It sees keys j in one interval [begin, end):
//   causal    [0, p+1)
//   window w  [max(0, p-w+1), p+1)            w keys, self included
//   chunked c [floor(p/c)*c, p+1)
//   full      [0, kv_len)                     q_len may exceed kv_len
//   rows      [row_begin[r], row_end[r])      per row, r counted over the whole step
// cut to [part_begin[i], part_end[i]) when parts are given, and to [0, kv_len).
// Tree overlay, on any kind: a key j >= tree_base[i] is visible iff bit (j - tree_base[i]) of the row's
// mask is set; a key below tree_base[i] follows the interval with p = tree_base[i] + depth[r].
// s = scale * q_descale * (q . k), then softcap c > 0: s = c * tanh(s / c); out = sum softmax(s) v. A sink is
// one extra logit per head that joins the denominator only; lse = ln sum exp(s) over visible keys, without
// it. A row with no visible key gives out = 0, lse = -inf. Rows of q outside [q_offsets[0], q_offsets[batch])
// and below total_q get out = 0, lse = -inf. What lies in unused slots, in table entries past the length or
// in page 0 never influences a result, and table entries without a visible key are never dereferenced.
// Accumulation is at least float32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/determinism.h"
#include "platform/platform.h"
#include "tensor/dtype.h"
#include "tensor/kv_format.h"

namespace quire::attention {

enum class Phase : std::uint8_t { decode, verify, extend };
enum class MaskKind : std::uint8_t { causal, window, chunked, full, rows };
enum class KvSource : std::uint8_t { paged, dense };

// A set of features; Problem.features says which a call uses, a box says which it can do.
enum Feature : std::uint32_t {
  kSoftcap = 1u << 0,
  kSink = 1u << 1,
  kLse = 1u << 2,
  kTree = 1u << 3,
  kPart = 1u << 4,
  kSparse = 1u << 5,
  kLatent = 1u << 6,
};

using quire::Determinism;  // base/determinism.h

std::string_view to_string(Phase phase);
std::string_view to_string(MaskKind kind);
std::string_view to_string(KvSource source);
std::string_view to_string(Determinism level);
std::string features_to_string(std::uint32_t features);

inline constexpr int kMaxTree = 64;  // longest tree of the CPU rows; bits are uint64 words

// The one place where a phase is derived. longest_verify: the decode pick's longest query (Caps).
Phase phase_of(int q_len, bool has_tree, int longest_verify);

// What is fixed for a call. No tensors.
struct Problem {
  std::uint32_t size = sizeof(Problem);
  platform::Kind platform = platform::Kind::cpu;
  std::int32_t arch = 0;  // DeviceInfo.arch
  Phase phase = Phase::decode;
  std::int32_t q_heads = 0;  // per rank
  std::int32_t kv_heads = 0;
  std::int32_t qk_dim = 0;
  std::int32_t v_dim = 0;
  DType q_type = DType::f32;  // of q and out
  KvFormat kv;
  std::int32_t page_size = 0;  // dense source: ignored
  PageOrder order = PageOrder::page_first;
  KvSource source = KvSource::paged;
  MaskKind mask = MaskKind::causal;
  std::uint32_t features = 0;
};

struct PrefixGroup {  // rows [row_begin, row_end) share their first shared_len keys
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t shared_len = 0;  // a multiple of the page size; levels nest
};

// What all layers of a call share in one step. Device pointers; the counts are host upper bounds.
struct StepShape {
  std::uint32_t size = sizeof(StepShape);
  std::int32_t batch = 0;                      // sequences (padded rows of a bucket included)
  std::int32_t total_q = 0;                    // rows of q and out
  std::int32_t max_q = 0;                      // longest query, bound
  std::int32_t max_kv = 0;                     // longest kv_len, bound (capacity)
  const std::int32_t* q_offsets = nullptr;     // [batch + 1], into the rows of q
  const std::int32_t* kv_lens = nullptr;       // [batch]
  const std::uint32_t* block_table = nullptr;  // paged: [batch, table_stride] page ids
  std::int64_t table_stride = 0;
  const std::int64_t* kv_offsets = nullptr;  // dense: [batch], token index of key 0
  MaskKind mask = MaskKind::causal;
  std::int32_t mask_width = 0;              // window w or chunk c
  const std::int32_t* row_begin = nullptr;  // mask rows: [total_q]
  const std::int32_t* row_end = nullptr;
  const std::uint64_t* tree_bits = nullptr;  // [total_q, tree_words], null: no overlay
  std::int32_t tree_words = 0;
  const std::int32_t* tree_base = nullptr;   // [batch]
  const std::int32_t* tree_depth = nullptr;  // [total_q]
  const std::int32_t* part_begin = nullptr;  // [batch], null: no parts
  const std::int32_t* part_end = nullptr;
  const PrefixGroup* prefix_groups = nullptr;  // host array, a hint: never changes the result
  std::int32_t prefix_group_count = 0;
};

// int32 [total_q, index_heads, k]: logical key indices, ascending, -1 padded. It only narrows: a key is
// visible iff the mask shows it and the list of the row and of index head h * index_heads / q_heads has it.
struct SparseIndex {
  std::uint32_t size = sizeof(SparseIndex);
  const std::int32_t* index = nullptr;
  std::int32_t index_heads = 0;
  std::int32_t k = 0;
};

// What one layer has. Strides in elements.
struct Args {
  std::uint32_t size = sizeof(Args);
  const void* q = nullptr;  // [total_q, q_heads, qk_dim], type Problem.q_type
  std::int64_t q_row_stride = 0;
  std::int64_t q_head_stride = 0;
  void* out = nullptr;  // [total_q, q_heads, v_dim]
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  float* lse = nullptr;  // [total_q, q_heads] dense, or null
  KvView kv;             // with its scales
  float scale = 1.0f;
  float q_descale = 1.0f;
  float softcap = 0.0f;         // 0: none
  const float* sink = nullptr;  // [q_heads], or null
  SparseIndex sparse;
};

// Upper bounds over all steps of an engine, for sizing workspaces once.
struct Limits {
  std::uint32_t size = sizeof(Limits);
  std::int32_t max_batch = 0;
  std::int32_t max_total_q = 0;
  std::int32_t max_q = 0;
  std::int32_t max_kv = 0;
  std::int32_t threads = 1;  // compute threads of the platform's team
};

// Device memory at a fixed address, workspace_bytes(Limits) long, owned by the engine, one per call.
struct PlanBuffer {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// A backend instance bound to one Problem. Made once per call of an engine; plan and run may be captured
// when Caps say so. Thread rule: one stream uses it at a time.
class Attention {
 public:
  virtual ~Attention() = default;
  // Bytes of the PlanBuffer: split plans, partial results, scratch. A formula of the limits.
  virtual std::int64_t workspace_bytes(const Limits& limits) const = 0;
  // Once per step and call, before the layers' runs. Reads lengths on the device.
  virtual void plan(const StepShape& shape, PlanBuffer buffer, platform::Stream& stream) = 0;
  // Once per layer, with the shape and buffer of the last plan.
  virtual void run(const StepShape& shape, const Args& args, PlanBuffer buffer, platform::Stream& stream) = 0;
};

}  // namespace quire::attention
