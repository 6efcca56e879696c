// What a record holds. A record is the file steps.qrec of a folder: a header, then frames.
//
//   header   magic, version, committed bytes and steps, how it ended, checksum (64 bytes, rewritten in place
//            after every step: a process that dies leaves every step before readable)
//   frame    kind u32, CRC-32C of the payload u32, payload bytes u64, payload
//   order    engine; then for each recorded step: step, its calls as they ran, outcome
//
// KV is stored once: a call carries the cache rows that no earlier frame of its layer holds as they are, so a
// reader that applies the frames in order has every page as the call saw it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/contract.h"
#include "base/result.h"

namespace quire::record {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::string_view kFileName = "steps.qrec";

enum class Ended : std::uint32_t {
  open,      // the process is still running, or died
  complete,  // the engine was closed
  limit,     // the size limit
  disk,      // a write failed
};
std::string_view to_string(Ended ended);

enum class FrameKind : std::uint32_t { engine = 1, step = 2, call = 3, outcome = 4 };

struct RecordedCall {
  std::string name;     // "full.decode"
  std::string backend;  // the row that ran it
  std::int32_t group = 0;
  attention::Determinism level = attention::Determinism::none;  // the row's declared one
  attention::Problem problem;
};

struct EngineFrame {
  std::string program;  // reserved, empty so far
  std::string architecture;
  std::string device;
  std::int32_t threads = 0;
  std::int32_t page_size = 0;
  std::int32_t max_context = 0;
  std::vector<RecordedCall> calls;
};

// A row of the plan (scheduler/step_plan.h has the meaning of each field).
struct RecordedRow {
  std::uint32_t sequence = 0;
  std::uint32_t slot = 0;
  std::uint8_t kind = 0;
  std::uint8_t input = 0;
  bool opens_slot = false;
  bool yields_token = false;
  std::int32_t first_row = 0;
  std::int32_t query_begin = 0;
  std::int32_t query_count = 0;
  std::int32_t visible = 0;
  std::int32_t allocated = 0;
  std::int32_t logits_begin = 0;
  std::int32_t logits_count = 0;
  std::int32_t output_index = 0;
};

// Of a row that opens its slot: how its tokens are drawn.
struct RecordedStart {
  std::uint32_t sequence = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::uint64_t seed = 0;
  std::uint64_t sequence_index = 0;
  float temperature = 0;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<std::int32_t> bias_token;
  std::vector<float> bias;
};

struct RecordedUpdate {  // of a block table; page 0: released
  std::uint32_t group = 0;
  std::uint32_t slot = 0;
  std::uint32_t entry = 0;
  std::uint32_t page = 0;
};

struct StepFrame {
  std::uint64_t step = 0;
  std::int32_t decode_rows = 0;
  std::int32_t verify_rows = 0;
  std::int32_t extend_rows = 0;
  std::int32_t total_q = 0;  // token rows of the plan, without padding
  std::vector<RecordedRow> rows;
  std::vector<RecordedStart> starts;
  std::vector<RecordedUpdate> updates;
  std::vector<std::uint32_t> retracted;
};

struct OutcomeFrame {
  std::uint64_t step = 0;
  std::vector<std::int32_t> tokens;   // [total_q] what the step read
  std::vector<std::int32_t> sampled;  // per row; -1: it yields none
};

// Slots [begin, begin + count) of one page as they lie in the cache.
struct KvRows {
  std::uint32_t page = 0;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  std::vector<std::uint8_t> k;  // [kv_heads, count, bytes of a row]
  std::vector<std::uint8_t> v;  // empty when latent
  std::vector<float> k_scale;   // token_head: [kv_heads, count]
  std::vector<float> v_scale;
};

// One run() of a backend: StepShape and Args by value.
struct CallFrame {
  std::uint64_t step = 0;
  std::uint32_t call = 0;        // index in EngineFrame::calls
  std::int32_t layer = 0;        // of the model
  std::int32_t first_token = 0;  // row 0 of q is this token row of the step; rows past the plan's are padding
  std::int32_t total_q = 0;
  std::int32_t max_q = 0;
  std::int32_t max_kv = 0;
  attention::MaskKind mask = attention::MaskKind::causal;
  std::int32_t mask_width = 0;
  std::vector<std::int32_t> q_offsets;  // [batch + 1]
  std::vector<std::int32_t> kv_lens;    // [batch]
  std::vector<std::uint32_t>
      table;  // paged: the entries of kv_lens[i] keys of each sequence, one after another
  std::vector<std::int64_t> kv_offsets;  // dense: [batch]
  std::vector<std::int32_t> row_begin, row_end;
  std::vector<std::uint64_t> tree_bits;
  std::int32_t tree_words = 0;
  std::vector<std::int32_t> tree_base, tree_depth;
  std::vector<std::int32_t> part_begin, part_end;
  float scale = 1;
  float q_descale = 1;
  float softcap = 0;
  std::vector<float> sink;              // [q_heads] or empty
  std::vector<float> k_scale, v_scale;  // tensor: [1]; layer_head: [kv_heads]
  std::vector<std::int32_t> sparse;     // [total_q, index_heads, sparse_k]
  std::int32_t index_heads = 0;
  std::int32_t sparse_k = 0;
  std::vector<std::uint8_t> q;        // [total_q, q_heads, qk_dim] of the problem's q_type
  std::vector<std::uint8_t> out;      // [total_q, q_heads, v_dim]: what the row gave
  std::vector<float> lse;             // [total_q, q_heads] or empty
  std::vector<KvRows> kv;             // paged: what is new
  std::vector<std::uint8_t> dense_k;  // dense: [tokens, kv_heads, qk_dim]
  std::vector<std::uint8_t> dense_v;  // [tokens, kv_heads, v_dim]

  std::int32_t batch() const { return static_cast<std::int32_t>(kv_lens.size()); }
};

// Bytes of one cache row of one head.
std::int64_t k_row_bytes(const attention::Problem& problem);
std::int64_t v_row_bytes(const attention::Problem& problem);
bool is_latent(const attention::Problem& problem);
// Scales of K, and as many of V, that stand for a whole call: those of each token and head lie in its rows.
std::int64_t fixed_scales(const attention::Problem& problem);

// Appends header and payload of a frame.
void append(const EngineFrame& frame, std::vector<std::byte>& out);
void append(const StepFrame& frame, std::vector<std::byte>& out);
void append(const OutcomeFrame& frame, std::vector<std::byte>& out);
void append(const CallFrame& frame, std::vector<std::byte>& out);

// A payload as its frame, with every size and index checked: what comes back can be run.
Result<EngineFrame> decode_engine(std::span<const std::byte> payload);
Result<StepFrame> decode_step(std::span<const std::byte> payload);
Result<OutcomeFrame> decode_outcome(std::span<const std::byte> payload);
Result<CallFrame> decode_call(std::span<const std::byte> payload, const EngineFrame& engine);

struct Header {
  std::uint64_t bytes = 0;  // committed, the header included
  std::uint64_t steps = 0;
  Ended ended = Ended::open;
};
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kFrameHeadBytes = 16;
std::vector<std::byte> encode_header(const Header& header);
// `file`: the whole file; refuses what is no record, another version, or shorter than it was.
Result<Header> decode_header(std::span<const std::byte> file, std::string_view name);

}  // namespace quire::record
