// The data of a case, in two steps. Logical is what is computed: keys, values, queries and masks by
// sequence, with no notion of pages. Placed is one way to lay it out for a backend: arena, page ids,
// table, strides, poison. The same Logical placed twice must give the same result.
//
// Host memory throughout; on_device.h copies it for platforms whose device has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/conformance/cases.h"
#include "attention/contract.h"

namespace quire::conformance {

// One sequence. Rows are its new queries; keys include theirs.
struct Sequence {
  int q_len = 0;
  int kv_len = 0;
  int shared_len = 0;  // first keys equal to those of sequence 0
  int tree_base = 0;
  int part_begin = 0;
  int part_end = 0;
  std::vector<std::uint8_t> k;  // as stored: [kv_len, kv_heads, qk_dim]
  std::vector<std::uint8_t> v;  // [kv_len, kv_heads, v_dim]; empty when latent
  std::vector<float> k_scale;   // token_head: [kv_len, kv_heads]
  std::vector<float> v_scale;
  std::vector<float> q;        // [q_len, q_heads, qk_dim], each value exact in the q type
  std::vector<int> row_begin;  // mask rows: [q_len]
  std::vector<int> row_end;
  std::vector<std::uint64_t> tree_bits;  // [q_len], one word
  std::vector<int> tree_depth;           // [q_len]
  std::vector<std::int32_t> sparse;      // [q_len, index_heads, sparse_k]
};

struct Logical {
  Case origin;
  attention::Problem problem;
  std::vector<Sequence> sequences;
  int mask_width = 0;
  float scale = 1;
  float q_descale = 1;
  float softcap = 0;
  std::vector<float> sink;     // [q_heads] or empty
  std::vector<float> k_scale;  // tensor: 1, layer_head: kv_heads
  std::vector<float> v_scale;
  int index_heads = 0;
  int sparse_k = 0;
  int lead_rows = 0;  // q rows before and after all sequences
  int tail_rows = 0;

  bool has(std::uint32_t feature) const { return (problem.features & feature) != 0; }
  int rows() const;  // of the sequences
  // The rule of the contract for one key, written key by key.
  bool visible(const Sequence& s, int row, int key) const;
};

Logical make_logical(const Case& c);
// Rows [first, last) of sequence `index` alone, with the keys that exist once they are written. Only for
// masks that a later key does not change (causal, window, chunked, without tree), or for all rows.
Logical take_rows(const Logical& all, int index, int first, int last);

struct Placement {
  int page_size = 16;
  PageOrder order = PageOrder::page_first;
  Pages pages = Pages::permuted;
  bool loose = false;
  // Table entries without a visible key are page 0 or an id that cannot be read; with `safe_dropped`
  // always page 0, so that a planted fault gives a wrong result and not the end of the process.
  bool safe_dropped = false;
  std::uint64_t seed = 0;
};

// An address range of its own, zero until written, given back at the end.
class Reserved {
 public:
  // Whether the system would give this process so much.
  static bool possible(std::int64_t bytes);
  // REQUIRES that it does.
  explicit Reserved(std::int64_t bytes);
  ~Reserved();
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Bytes between two guards that nobody may write.
class Guarded {
 public:
  explicit Guarded(std::int64_t bytes, std::uint8_t fill = 0xff);
  char* data() { return bytes_.data() + kGuard; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()) - 2 * kGuard; }
  bool intact() const;
  void refill(std::uint8_t fill);
  static constexpr std::int64_t kGuard = 128;

 private:
  std::vector<char> bytes_;
};

class Placed {
 public:
  // REQUIRES an address range of arena_bytes(): see Reserved.
  Placed(const Logical& logical, const Placement& placement);
  // What the paged cache takes of the address space, nearly all of it never touched; 0 for a dense one, which
  // is small.
  static std::int64_t arena_bytes(const Logical& logical, const Placement& placement);
  const attention::Problem& problem() const { return problem_; }
  const attention::StepShape& shape() const { return shape_; }
  const attention::Args& args() const { return args_; }  // out and lse are this object's
  attention::Limits limits(int threads) const;
  // The same inputs with q as float32 and dense float outputs, for the oracle.
  attention::Args oracle_args(float* out, float* lse) const;

  // Fills out and lse with NaN again, at the same addresses.
  void poison_outputs_in_place();
  // Device lengths as they are (true) or all 0: a graph is recorded at other lengths than it replays.
  void set_lengths(bool real);
  // Row r of the sequences' rows, head h, as floats: [v_dim].
  std::vector<float> out_row(int row, int head) const;
  std::span<const char> out_bits(int row, int head) const;
  float lse(int row, int head) const;  // REQUIRES kLse
  // Empty, or what was written where nothing may be: guards, gaps between rows, idle rows that are not 0.
  const char* stray_write() const;
  // The cache: its address range, and the stretches of it that were written.
  struct Stretch {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };
  const Reserved& arena() const { return *arena_; }
  const std::vector<Stretch>& written() const { return written_; }
  int lead_rows() const { return lead_; }
  int total_rows() const { return shape_.total_q; }

 private:
  void place_step(const Logical& l);
  void place_rows(const Logical& l);
  void poison_page(std::int64_t page);
  void place_paged(const Logical& l, const Placement& p);
  void place_dense(const Logical& l, const Placement& p);
  void place_queries(const Logical& l, const Placement& p);
  void make_outputs();
  void write_key(const Logical& l, const Sequence& s, int key, std::int64_t page, std::int64_t token);

  attention::Problem problem_;
  attention::StepShape shape_;
  attention::Args args_;
  int lead_ = 0;
  std::int64_t page_stride_ = 0;
  std::unique_ptr<Reserved> arena_;
  std::vector<Stretch> written_;
  std::vector<std::int32_t> real_kv_lens_;
  std::vector<std::int32_t> q_offsets_, kv_lens_, row_begin_, row_end_, tree_base_, tree_depth_, part_begin_,
      part_end_, sparse_;
  std::vector<std::int64_t> kv_offsets_;
  std::vector<std::uint32_t> table_;
  std::vector<std::uint64_t> tree_bits_;
  std::vector<attention::PrefixGroup> groups_;
  std::vector<float> k_scale_, v_scale_, sink_, q_f32_;
  std::vector<char> q_;
  std::unique_ptr<Guarded> out_, lse_;
};

}  // namespace quire::conformance
