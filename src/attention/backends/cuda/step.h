// What the kernels of the cuda row are given: plain structs, passed by value. Host and device read this.
//
// Work. Rows of a tile are packed: packed row r of a sequence is query r / ratio, head r % ratio of the KV
// head's group, so all heads that share keys share their loads. A Unit is one tile of packed rows and the
// keys that some row of it sees, in tiles of kTileKeys at absolute multiples. The units of all KV heads, laid
// end to end, are one line of key tiles, cut into equal parts: part p is [p * part_tiles, (p + 1) *
// part_tiles), and block p of the fixed grid computes it, whatever the lengths. After each unit's tiles come
// a few empty places, as many as starting and finishing a unit costs in tiles, so that parts of many short
// units are not the slowest. A stretch of one unit inside one part is a piece. A unit of several pieces is
// joined in key order by the block that finishes its last piece.
//
// A cascade: two runs of a step side by side, and a third kernel that makes one of them. The first computes
// the prefixes that groups of sequences share and leaves the pieces of cut units as they are; the second
// computes what is each sequence's own; the third joins all, with every row and head a warp (join.cu). The
// second begins when all blocks of the first have begun, and ends after it, so that the third has both behind
// it.
#pragma once

#include <cstdint>

namespace quire::attention::cuda {

inline constexpr std::int32_t kTileKeys = 64;

struct Unit {
  std::int32_t q_begin = 0;    // row of q of the sequence's first query
  std::int32_t q_len = 0;      // queries of the sequence
  std::int32_t table_row = 0;  // the sequence
  std::int32_t first_row = 0;  // packed
  std::int32_t key_begin = 0;  // keys that some row sees: [key_begin, key_end)
  std::int32_t key_end = 0;
  std::int32_t full_begin = 0;  // keys that every row sees
  std::int32_t full_end = 0;
  std::int32_t kv_len = 0;       // of the sequence
  std::int32_t clamp_begin = 0;  // what the sequence's part leaves of it
  std::int32_t clamp_end = 0;
  std::int32_t prefix = 0;  // 1: every row sees all keys of the unit (the shared prefix of a group)
};

// Places of a part where a line of `all` places is dealt to `parts` of them.
constexpr std::int64_t places_of_part(std::int64_t all, std::int32_t parts, std::int32_t least) {
  const std::int64_t equal = (all + parts - 1) / parts;
  return equal > least ? equal : least;
}

// The parts that hold the pieces of a unit and head, whose tiles begin at place `first` of the line.
struct Cut {
  std::int64_t first_part = 0;
  std::int64_t last_part = -1;
};
constexpr Cut cut_at(std::int64_t first, std::int32_t tiles, std::int32_t part_tiles) {
  return {first / part_tiles, (first + tiles - 1) / part_tiles};
}
// Where the piece of a cut unit in part `part` has its results: a part holds at most one that goes on from
// the part before (slot 0) and one that goes on into the next (slot 1).
constexpr std::int64_t slot_of(const Cut& cut, std::int64_t part) {
  return part * 2 + (part == cut.first_part ? 1 : 0);
}

struct PlanHeader {
  std::int32_t units = 0;
  std::int32_t head_tiles = 0;  // length of the line of one KV head
  std::int32_t part_tiles = 1;
  std::int32_t unit_cost = 0;  // of each unit
};

// Where a part begins.
struct PartStart {
  std::int32_t unit = 0;
  std::int32_t head = 0;
  std::int32_t skip = 0;    // places of the unit that belong to earlier parts
  std::int32_t places = 0;  // of this part; 0: nothing to do
};

// Where a plan lies in the PlanBuffer.
struct Plan {
  PlanHeader* header = nullptr;
  std::int32_t* sequence_units = nullptr;  // [batch + 1] prefix sum
  Unit* units = nullptr;                   // [unit_capacity]
  std::int32_t* starts = nullptr;          // [unit_capacity + 1]: first place in the line of one head
  PartStart* part_starts = nullptr;        // [parts]
  std::int32_t* arrivals = nullptr;        // [kv_heads * unit_capacity] pieces done, 0 between runs
  float* sums = nullptr;                   // [parts, 2, tile_rows, v_pad] unnormalised
  float* stats = nullptr;                  // [parts, 2, tile_rows, 2] largest score in base-2 units, sum
  std::int32_t unit_capacity = 0;
  std::int32_t parts = 0;  // blocks of the grid
};

// StepShape as a kernel reads it.
struct Step {
  std::int32_t batch = 0;
  std::int32_t total_q = 0;
  const std::int32_t* q_offsets = nullptr;
  const std::int32_t* kv_lens = nullptr;
  const std::uint32_t* block_table = nullptr;
  std::int64_t table_stride = 0;
  const std::int64_t* kv_offsets = nullptr;  // dense source, else null
  std::int32_t mask = 0;                     // MaskKind
  std::int32_t mask_width = 0;
  const std::int32_t* row_begin = nullptr;
  const std::int32_t* row_end = nullptr;
  const std::uint64_t* tree_bits = nullptr;
  std::int32_t tree_words = 0;
  const std::int32_t* tree_base = nullptr;
  const std::int32_t* tree_depth = nullptr;
  const std::int32_t* part_begin = nullptr;
  const std::int32_t* part_end = nullptr;
};

enum class OutType : std::int32_t { same, f32 };  // same: the type of q

// Alone, or the first or the second run of a cascade (above).
enum class Role : std::int32_t { alone, prefix, suffix };

struct Strides {  // bytes
  std::int64_t page = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
};

struct RunParams {
  Step step;
  Plan plan;
  const char* q = nullptr;
  std::int64_t q_row_stride = 0;  // elements
  std::int64_t q_head_stride = 0;
  char* out = nullptr;
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  float* lse = nullptr;  // [total_q, q_heads], natural log
  const float* sink = nullptr;
  const char* k = nullptr;
  const char* v = nullptr;
  Strides k_stride;
  Strides v_stride;
  Strides scale_stride;
  const char* k_scale = nullptr;
  const char* v_scale = nullptr;
  std::int32_t scale_kind = 0;  // KvScaleKind
  std::int32_t page_size = 1;
  std::int32_t page_shift = 0;  // of a power of two, else -1
  std::int32_t q_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t ratio = 1;
  std::int32_t qk_dim = 0;
  std::int32_t v_dim = 0;
  float scale = 1;    // with q_descale
  float softcap = 0;  // 0: none
  OutType out_type = OutType::same;
  bool q_aligned = true;   // rows of q may be read 16 bytes at a time
  bool kv_aligned = true;  // rows of the cache too; else 4 bytes at a time
  bool clear_idle = true;  // rows of no sequence are written
  Role role = Role::alone;
};

}  // namespace quire::attention::cuda
