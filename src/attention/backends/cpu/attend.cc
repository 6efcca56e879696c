#include "attention/backends/cpu/attend.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/backends/cpu/rows.h"

namespace quire::attention::cpu {
namespace {

constexpr int kElementBytes[kKvElements] = {4, 2, 2, 1};

// What keys that nobody sees are read as; the widest row is kMaxDim floats.
alignas(64) constexpr float kZeros[kMaxDim] = {};

// The (query row, head) pairs of one unit and lane. Pair m is row m / heads, head m % heads of the block.
class Block {
 public:
  Block(const AttendContext& context, const Unit& unit, std::int32_t lane, int thread);

  void run();

 private:
  std::int64_t step_row(int m) const { return first_row_ + m / heads_; }
  std::int32_t head(int m) const { return first_head_ + m % heads_; }
  float* record(int m, std::int32_t split) const;

  bool find_masks(TileKeys& keys) const;
  void find_rows(TileKeys& keys) const;
  void find_segment(TileKeys& keys, int begin, int end, std::uint64_t seen) const;
  // The first tile from `tile` on that a row sees, with its rows found; tile = -1 when there is none.
  void next_tile(TileKeys& keys, std::int32_t tile) const;
  void fetch(const TileKeys& keys) const;
  void prepare_args();
  void set_tile(const TileKeys& keys, const TileKeys& next);
  void clear_split();
  void end_split();
  void store_records(std::int32_t split) const;
  void join_group();
  void write_row(int m, float max, float sum, const float* acc) const;

  const AttendContext& c_;
  const Geometry& g_;
  const Unit& unit_;
  const std::int32_t lane_;
  const std::int32_t kv_head_;
  const Scratch scratch_;
  std::int32_t first_head_ = 0;
  std::int32_t heads_ = 0;
  std::int64_t first_row_ = 0;  // of the step
  int rows_ = 0;                // pairs
  TileArgs tile_;
  RowView views_[kMaxRows];
  const float* q_[kMaxRows];
  float max_[kMaxRows];
  float sum_[kMaxRows];
  float alpha_[kMaxRows];
  float total_max_[kMaxRows];
  float total_sum_[kMaxRows];
};

Block::Block(const AttendContext& context, const Unit& unit, std::int32_t lane, int thread)
    : c_(context),
      g_(*context.geometry),
      unit_(unit),
      lane_(lane),
      kv_head_(lane / g_.head_blocks),
      scratch_(make_scratch(g_, context.layout->scratch + thread * context.layout->scratch_bytes)) {
  const std::int32_t block = lane % g_.head_blocks;
  heads_ = std::min(g_.block_heads, g_.ratio - block * g_.block_heads);
  first_head_ = kv_head_ * g_.ratio + block * g_.block_heads;
  first_row_ = std::int64_t{c_.shape->q_offsets[unit.sequence]} + unit.row;
  rows_ = unit.rows * heads_;
  std::fill_n(total_max_, rows_, kNoKey);
  std::fill_n(total_sum_, rows_, 0.0f);
}

float* Block::record(int m, std::int32_t split) const {
  const Group& group = c_.layout->groups[unit_.group];
  const std::int64_t slot =
      group.slot + std::int64_t{split - group.whole.first_split} * unit_.rows + m / heads_;
  return c_.layout->records + (slot * g_.q_heads + head(m)) * g_.record_floats;
}

bool Block::find_masks(TileKeys& keys) const {
  keys.any = 0;
  for (std::int32_t r = 0; r < unit_.rows; ++r) {
    const std::uint64_t bits = tile_mask(views_[r], keys.tile * kTileKeys);
    for (std::int32_t h = 0; h < heads_; ++h) keys.visible[r * heads_ + h] = bits;
    keys.any |= bits;
  }
  return keys.any != 0;
}

// Keys [begin, end) of the tile, all of one page (or of a dense source).
void Block::find_segment(TileKeys& keys, int begin, int end, std::uint64_t seen) const {
  const KvView& kv = c_.args->kv;
  const std::int64_t first = std::int64_t{keys.tile} * kTileKeys + begin;
  std::int64_t page = 0;
  std::int64_t token = first;
  if (c_.source == KvSource::paged) {
    page = c_.shape->block_table[unit_.sequence * c_.shape->table_stride + first / kv.page_size];
    token = first % kv.page_size;
  } else {
    token += c_.shape->kv_offsets[unit_.sequence];
  }
  const char* k = static_cast<const char*>(kv.k) + page * kv.k_stride.page + kv_head_ * kv.k_stride.head;
  const char* v = static_cast<const char*>(kv.v) + page * kv.v_stride.page + kv_head_ * kv.v_stride.head;
  for (int j = begin; j < end; ++j, ++token) {
    const bool visible = seen >> j & 1;
    keys.k[j] = visible ? static_cast<const void*>(k + token * kv.k_stride.token) : kZeros;
    keys.v[j] = visible ? static_cast<const void*>(v + token * kv.v_stride.token) : kZeros;
  }
  if (kv.format.scale != KvScaleKind::token_head) return;
  token -= end - begin;
  const std::int64_t base = page * kv.scale_stride.page + kv_head_ * kv.scale_stride.head;
  for (int j = begin; j < end; ++j, ++token) {
    const std::int64_t at = base + token * kv.scale_stride.token;
    const bool visible = seen >> j & 1;
    keys.k_scale[j] =
        visible ? *reinterpret_cast<const float*>(reinterpret_cast<const char*>(kv.k_scale) + at) : 0.0f;
    keys.v_scale[j] =
        visible ? *reinterpret_cast<const float*>(reinterpret_cast<const char*>(kv.v_scale) + at) : 0.0f;
  }
}

void Block::find_rows(TileKeys& keys) const {
  const std::int64_t page_size = c_.source == KvSource::paged ? c_.args->kv.page_size : kTileKeys;
  const std::int64_t first = std::int64_t{keys.tile} * kTileKeys;
  for (int begin = 0; begin < kTileKeys;) {
    const std::int64_t left = page_size - (first + begin) % page_size;
    const int end = static_cast<int>(std::min<std::int64_t>(kTileKeys, begin + left));
    const std::uint64_t segment = (end == 64 ? ~0ull : (1ull << end) - 1) & (~0ull << begin);
    if ((keys.any & segment) != 0) {
      find_segment(keys, begin, end, keys.any);
    } else {
      for (int j = begin; j < end; ++j) {
        keys.k[j] = keys.v[j] = kZeros;
        keys.k_scale[j] = keys.v_scale[j] = 0.0f;
      }
    }
    begin = end;
  }
}

void Block::next_tile(TileKeys& keys, std::int32_t tile) const {
  constexpr std::int32_t kTiles = kSplitKeys / kTileKeys;
  const std::int32_t end = (unit_.first_split + unit_.splits) * kTiles;
  for (keys.tile = tile; keys.tile < end; ++keys.tile) {
    if (!find_masks(keys)) continue;
    find_rows(keys);
    return;
  }
  keys.tile = -1;
}

// The keys of the first tile; each tile then has the kernel fetch its values and the next one's keys.
void Block::fetch(const TileKeys& keys) const {
  const int bytes = g_.qk_dim * kElementBytes[g_.element];
  for (int j = 0; j < kTileKeys; ++j)
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(keys.k[j]) + at, 0, 2);
}

void Block::prepare_args() {
  const Args& args = *c_.args;
  for (std::int32_t r = 0; r < unit_.rows; ++r)
    views_[r] = row_view(*c_.shape, unit_.sequence, unit_.row + r);
  const bool packed = rows_ > kFewRows;
  for (int m = 0; m < rows_; ++m) {
    const float* q =
        static_cast<const float*>(args.q) + step_row(m) * args.q_row_stride + head(m) * args.q_head_stride;
    float* ordered = scratch_.q + std::int64_t{m} * g_.qk_dim;
    (packed ? c_.kernels->q_by_chain : c_.kernels->q_by_lane)[g_.element](q, g_.qk_dim, ordered);
    q_[m] = ordered;
  }
  tile_.rows = rows_;
  tile_.qk_dim = g_.qk_dim;
  tile_.v_dim = g_.v_dim;
  tile_.acc_stride = g_.acc_stride;
  tile_.packed = packed;
  tile_.q_lanes = q_;
  tile_.q_packed = scratch_.q;
  tile_.scale = args.scale * args.q_descale * c_.kernels->unit[g_.element];
  if (args.kv.format.scale == KvScaleKind::tensor) tile_.scale *= args.kv.k_scale[0];
  if (args.kv.format.scale == KvScaleKind::layer_head) tile_.scale *= args.kv.k_scale[kv_head_];
  tile_.softcap = args.softcap;
  tile_.max = max_;
  tile_.sum = sum_;
  tile_.acc = scratch_.acc;
  tile_.scores = scratch_.scores;
  tile_.alpha = alpha_;
  tile_.chains = scratch_.chains;
  tile_.k_pack = scratch_.k_pack;
  tile_.v_pack = scratch_.v_pack;
}

void Block::set_tile(const TileKeys& keys, const TileKeys& next) {
  tile_.k = keys.k;
  tile_.v = keys.v;
  tile_.next_k = next.tile >= 0 ? next.k : nullptr;
  tile_.any = keys.any;
  tile_.visible = keys.visible;
  const bool scaled = c_.args->kv.format.scale == KvScaleKind::token_head;
  tile_.k_scale = scaled ? keys.k_scale : nullptr;
  tile_.v_scale = scaled ? keys.v_scale : nullptr;
}

void Block::clear_split() {
  std::fill_n(max_, rows_, kNoKey);
  std::fill_n(sum_, rows_, 0.0f);
  std::fill_n(scratch_.acc, std::int64_t{rows_} * g_.acc_stride, 0.0f);
}

// What the split in hand adds to its rows.
void Block::end_split() {
  for (int m = 0; m < rows_; ++m) {
    const std::int64_t at = std::int64_t{m} * g_.acc_stride;
    c_.kernels->fold(&total_max_[m], &total_sum_[m], scratch_.total_acc + at, max_[m], sum_[m],
                     scratch_.acc + at, g_.v_dim);
  }
}

void Block::store_records(std::int32_t split) const {
  for (int m = 0; m < rows_; ++m) {
    float* to = record(m, split);
    std::copy_n(scratch_.acc + std::int64_t{m} * g_.acc_stride, g_.v_dim, to);
    to[g_.v_dim] = max_[m];
    to[g_.v_dim + 1] = sum_[m];
  }
}

// The last unit of a group to arrive joins all splits in key order.
void Block::join_group() {
  const Group& group = c_.layout->groups[unit_.group];
  std::atomic_ref<std::int32_t> arrived(c_.layout->arrivals[std::int64_t{unit_.group} * g_.lanes() + lane_]);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < group.whole.splits) return;
  arrived.store(0, std::memory_order_relaxed);
  for (int m = 0; m < rows_; ++m) {
    float max = kNoKey;
    float sum = 0.0f;
    for (std::int32_t s = 0; s < group.whole.splits; ++s) {
      const float* part = record(m, group.whole.first_split + s);
      c_.kernels->fold(&max, &sum, scratch_.total_acc, part[g_.v_dim], part[g_.v_dim + 1], part, g_.v_dim);
    }
    write_row(m, max, sum, scratch_.total_acc);
  }
}

void Block::write_row(int m, float max, float sum, const float* acc) const {
  const Args& args = *c_.args;
  float* out =
      static_cast<float*>(args.out) + step_row(m) * args.out_row_stride + head(m) * args.out_head_stride;
  float* lse = args.lse == nullptr ? nullptr : args.lse + step_row(m) * g_.q_heads + head(m);
  if (max == kNoKey) {
    std::fill_n(out, g_.v_dim, 0.0f);
    if (lse != nullptr) *lse = kNoKey;
    return;
  }
  double whole = sum;
  if (args.sink != nullptr) whole += std::exp(static_cast<double>(args.sink[head(m)]) - max);
  double value = c_.kernels->unit[g_.element];
  if (args.kv.format.scale == KvScaleKind::tensor) value *= args.kv.v_scale[0];
  if (args.kv.format.scale == KvScaleKind::layer_head) value *= args.kv.v_scale[kv_head_];
  c_.kernels->write[g_.element](out, acc, static_cast<float>(value / whole), g_.v_dim);
  if (lse != nullptr) *lse = static_cast<float>(max + std::log(static_cast<double>(sum)));
}

void Block::run() {
  constexpr std::int32_t kTiles = kSplitKeys / kTileKeys;
  prepare_args();
  TileKeys* now = scratch_.keys[0];
  TileKeys* next = scratch_.keys[1];
  next_tile(*now, unit_.first_split * kTiles);
  if (now->tile >= 0) fetch(*now);
  clear_split();
  while (now->tile >= 0) {
    next_tile(*next, now->tile + 1);
    set_tile(*now, *next);
    c_.kernels->tile[g_.element](tile_);
    const bool ends = next->tile < 0 || next->tile / kTiles != now->tile / kTiles;
    if (ends && unit_.group < 0) {
      end_split();
      if (next->tile >= 0) clear_split();
    }
    std::swap(now, next);
  }
  if (unit_.group >= 0) {
    store_records(unit_.first_split);
    join_group();
    return;
  }
  for (int m = 0; m < rows_; ++m)
    write_row(m, total_max_[m], total_sum_[m], scratch_.total_acc + std::int64_t{m} * g_.acc_stride);
}

void clear_row(const AttendContext& context, std::int64_t row) {
  const Geometry& g = *context.geometry;
  const Args& args = *context.args;
  float* out = static_cast<float*>(args.out) + row * args.out_row_stride;
  for (std::int32_t h = 0; h < g.q_heads; ++h) {
    std::fill_n(out + h * args.out_head_stride, g.v_dim, 0.0f);
    if (args.lse != nullptr) args.lse[row * g.q_heads + h] = kNoKey;
  }
}

}  // namespace

void attend(const AttendContext& context, std::int64_t unit, std::int32_t lane, int thread) {
  Block(context, context.layout->units[unit], lane, thread).run();
}

void clear_outside(const AttendContext& context) {
  const StepShape& shape = *context.shape;
  const std::int64_t begin = shape.batch > 0 ? shape.q_offsets[0] : 0;
  const std::int64_t end = shape.batch > 0 ? shape.q_offsets[shape.batch] : 0;
  for (std::int64_t row = 0; row < begin; ++row) clear_row(context, row);
  for (std::int64_t row = end; row < shape.total_q; ++row) clear_row(context, row);
}

}  // namespace quire::attention::cpu
