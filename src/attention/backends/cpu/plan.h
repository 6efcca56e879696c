// The PlanBuffer of the cpu row: the units of work of a step, partial results of split sequences and the
// threads' scratch. Nothing here decides a bit of the result (kernel.h); it decides who computes what.
#pragma once

#include <cstdint>

#include "attention/backends/cpu/kernel.h"
#include "attention/backends/cpu/rows.h"
#include "attention/contract.h"

namespace quire::attention::cpu {

// What follows from the Problem alone.
struct Geometry {
  std::int32_t q_heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t ratio = 0;        // query heads of a KV head
  std::int32_t block_heads = 0;  // of them in one block, the last block may have fewer
  std::int32_t head_blocks = 0;  // blocks of a KV head
  std::int32_t block_rows = 0;   // query rows of a block
  std::int32_t qk_dim = 0;
  std::int32_t v_dim = 0;
  std::int32_t acc_stride = 0;
  std::int32_t record_floats = 0;  // a partial result of one row and head: acc [acc_stride], max, sum, splits
  std::int32_t split_rows = 0;     // longest query whose keys are dealt to several units
  KvElement element = kF32;

  std::int32_t lanes() const { return kv_heads * head_blocks; }
  std::int32_t max_rows() const { return block_rows * block_heads; }
};
Geometry make_geometry(const Problem& problem);

// One piece of work: rows x keys, for each of some lanes.
struct Unit {
  std::int32_t sequence = 0;
  std::int32_t row = 0;  // first, inside the sequence
  std::int32_t rows = 0;
  std::int32_t first_split = 0;  // keys [first_split * kSplitKeys, ...)
  std::int32_t splits = 0;       // 0: no row sees a key
  std::int32_t group = -1;       // -1: the unit has all its rows' keys and finishes them itself
  std::int32_t first_lane = 0;
  std::int32_t lanes = 0;
};

// Units [first_unit, first_unit + units) have the same lanes; they are dealt lane by lane, abreast.
struct Wave {
  std::int64_t first_work = 0;  // the pieces of work before it
  std::int32_t first_unit = 0;
  std::int32_t units = 0;
};

// Rows whose splits are dealt to several units; the last one to finish joins them, split by split.
struct Group {
  Unit whole;
  std::int64_t slot = 0;  // of split first_split, row `row`; then row by row, split by split
};

struct PlanHeader {
  std::int32_t unit_count = 0;
  std::int32_t group_count = 0;
  std::int32_t wave_count = 0;
  std::int64_t work_count = 0;  // units times their lanes
};

// Where everything lies; a function of the shape's bounds, so plan and run find the same.
struct PlanLayout {
  PlanHeader* header = nullptr;
  Unit* units = nullptr;
  Wave* waves = nullptr;
  Group* groups = nullptr;
  std::int32_t* arrivals = nullptr;  // [groups, lanes]: splits done; 0 between runs
  float* records = nullptr;          // [slots, q_heads, record_floats]
  char* scratch = nullptr;           // [threads] of scratch_bytes
  std::int64_t scratch_bytes = 0;
  std::int32_t threads = 1;
  std::int64_t unit_capacity = 0;
  std::int64_t group_capacity = 0;
  std::int64_t slot_capacity = 0;
  std::int64_t bytes = 0;  // of all of it
};

// Scratch of one thread. All parts 64-byte aligned.
struct TileKeys {
  const void* k[kTileKeys];
  const void* v[kTileKeys];
  float k_scale[kTileKeys];
  float v_scale[kTileKeys];
  std::uint64_t visible[kMaxRows];
  std::uint64_t any;
  std::int32_t tile;
  bool stretch;  // kernel.h: TileArgs
};
struct Scratch {
  TileKeys* keys[2] = {};    // the tile in hand and the one to come
  RowView* views = nullptr;  // of the block's query rows
  float* q = nullptr;
  float* scores = nullptr;
  float* chains = nullptr;
  float* k_pack = nullptr;
  float* v_pack = nullptr;
  float* acc = nullptr;        // of the split in hand
  float* run_acc = nullptr;    // of the splits before it in its run
  float* total_acc = nullptr;  // of the runs before that
  std::int64_t bytes = 0;
};
Scratch make_scratch(const Geometry& geometry, char* base);

std::int64_t plan_bytes(const Geometry& geometry, const Limits& limits);
// REQUIRES buffer.bytes >= plan_bytes of limits that hold the shape and the threads.
PlanLayout make_layout(const Geometry& geometry, const StepShape& shape, PlanBuffer buffer, int threads);
// Writes header, units, waves, groups and arrivals. Runs on the stream: it reads lengths.
void make_plan(const Geometry& geometry, const StepShape& shape, const PlanLayout& layout);

// A unit of the plan, for one lane (KV head and block of its query heads).
struct Work {
  std::int64_t unit = 0;
  std::int32_t lane = 0;
};
// index < header->work_count
Work work_of(const PlanLayout& layout, std::int64_t index);

}  // namespace quire::attention::cpu
