#include "attention/backends/cpu/attend.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "attention/backends/cpu/rows.h"

namespace quire::attention::cpu {
namespace {

constexpr int kElementBytes[kKvElements] = {4, 2, 2, 1};

// What keys that nobody sees are read as; the widest row is kMaxDim floats.
alignas(64) constexpr float kZeros[kMaxDim] = {};

// Whose keys: a sequence and a KV head.
struct Owner {
  std::int32_t sequence;
  std::int32_t kv_head;
};

// Running maxima, sums of weights and weighted sums of rows, to which parts are added.
struct Sums {
  float* max;
  float* sum;
  float* acc;
};

// The (query row, head) pairs of one unit and lane. Pair m is row m / heads, head m % heads of the block.
class Block {
 public:
  Block(const AttendContext& context, const Work& work, int thread);

  // `next`: what this thread will probably do then; its first keys are fetched at the end. Null: unknown.
  void run(const Work* next);

 private:
  std::int64_t step_row(int m) const { return first_row_ + m / heads_; }
  std::int32_t head(int m) const { return first_head_ + m % heads_; }
  float* record(int m, std::int32_t split) const;

  bool find_masks(TileKeys& keys) const;
  void find_rows(TileKeys& keys, Owner owner, bool listed) const;
  bool find_stretch(TileKeys& keys, Owner owner) const;
  void find_scales(TileKeys& keys, Owner owner, int begin, int end, std::int64_t page,
                   std::int64_t token) const;
  // The first tile from `tile` on that a row sees, with its rows found; tile = -1 when there is none.
  void next_tile(TileKeys& keys, std::int32_t tile, bool listed) const;
  bool find_first(TileKeys& keys, const Work& work, bool listed) const;
  void prepare_args();
  void set_tile(const TileKeys& keys, const void* const* next_k);
  void clear_split();
  bool holds_run_of(std::int32_t split) const;
  void end_split(std::int32_t split);
  void end_run(std::int32_t split);
  void store_records(std::int32_t split, std::int32_t splits, const float* max, const float* sum,
                     const float* acc) const;
  void fold(Sums into, const float* max, const float* sum, const float* acc);
  std::int32_t fold_records(Sums into, std::int32_t split);
  void join_group();
  void write_row(int m, float max, float sum, const float* acc) const;

  const AttendContext& c_;
  const Geometry& g_;
  const Unit& unit_;
  const std::int32_t lane_;
  const Owner owner_;
  Scratch scratch_;  // its sums change places
  std::int32_t first_head_ = 0;
  std::int32_t heads_ = 0;
  std::int64_t first_row_ = 0;  // of the step
  int rows_ = 0;                // pairs
  TileArgs tile_;
  const float* q_[kMaxRows];
  float max_[kMaxRows];
  float sum_[kMaxRows];
  float alpha_[kMaxRows];
  bool stretches_ = false;  // the kernel takes them
  bool fresh_ = true;       // no tile of the split yet
  bool run_empty_ = true;   // no split yet
  float run_max_[kMaxRows];
  float run_sum_[kMaxRows];
  float total_max_[kMaxRows];
  float total_sum_[kMaxRows];
  const float* parts_[kMaxRows];  // to be joined
};

Block::Block(const AttendContext& context, const Work& work, int thread)
    : c_(context),
      g_(*context.geometry),
      unit_(context.layout->units[work.unit]),
      lane_(work.lane),
      owner_{unit_.sequence, lane_ / g_.head_blocks},
      scratch_(make_scratch(g_, context.layout->scratch + thread * context.layout->scratch_bytes)) {
  const std::int32_t block = lane_ % g_.head_blocks;
  heads_ = std::min(g_.block_heads, g_.ratio - block * g_.block_heads);
  first_head_ = owner_.kv_head * g_.ratio + block * g_.block_heads;
  first_row_ = std::int64_t{c_.shape->q_offsets[unit_.sequence]} + unit_.row;
  rows_ = unit_.rows * heads_;
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
    const std::uint64_t bits = tile_mask(scratch_.views[r], keys.tile * kTileKeys);
    for (std::int32_t h = 0; h < heads_; ++h) keys.visible[r * heads_ + h] = bits;
    keys.any |= bits;
  }
  return keys.any != 0;
}

// Addresses of `count` cache rows from `row` on; bit j of `seen`: somebody sees the j-th.
inline void place_rows(const Kernels& kernels, const void** to, const char* row, std::int64_t stride,
                       int count, std::uint64_t seen) {
  constexpr int kFew = 8;  // not worth a call
  if (std::countr_one(seen) >= count) {
    if (count >= kFew) return kernels.place_rows(to, row, stride, count);
    for (int j = 0; j < count; ++j) to[j] = row + j * stride;
  } else {
    for (int j = 0; j < count; ++j)
      to[j] = (seen >> j & 1) != 0 ? static_cast<const void*>(row + j * stride) : kZeros;
  }
}

// The usual tile of a long page: nothing to list.
bool Block::find_stretch(TileKeys& keys, Owner owner) const {
  const KvView& kv = c_.args->kv;
  const std::int64_t first = std::int64_t{keys.tile} * kTileKeys;
  const char* k = static_cast<const char*>(kv.k) + owner.kv_head * kv.k_stride.head;
  const char* v = static_cast<const char*>(kv.v) + owner.kv_head * kv.v_stride.head;
  std::int64_t token = 0;
  if (c_.source == KvSource::paged) {
    if (kv.page_size % kTileKeys != 0) return false;
    const std::uint32_t page =
        c_.shape->block_table[owner.sequence * c_.shape->table_stride + first / kv.page_size];
    token = first % kv.page_size;
    k += page * kv.k_stride.page;
    v += page * kv.v_stride.page;
  } else {
    token = first + c_.shape->kv_offsets[owner.sequence];
  }
  keys.k[0] = k + token * kv.k_stride.token;
  keys.v[0] = v + token * kv.v_stride.token;
  return true;
}

// Page by page; a dense source is one page. Entries of the table without a key that is seen are not read.
// `listed`: even where the first address would do; a tile in hand that is listed wants the next one so.
void Block::find_rows(TileKeys& keys, Owner owner, bool listed) const {
  const KvView& kv = c_.args->kv;
  keys.stretch = stretches_ && keys.any == ~0ull && find_stretch(keys, owner);
  if (keys.stretch && !listed) return;
  const std::int64_t first = std::int64_t{keys.tile} * kTileKeys;
  std::int64_t page_size = std::numeric_limits<std::int64_t>::max();
  const std::uint32_t* table = nullptr;
  std::int64_t token = first;
  if (c_.source == KvSource::paged) {
    page_size = kv.page_size;
    table = c_.shape->block_table + owner.sequence * c_.shape->table_stride + first / page_size;
    token = first % page_size;
  } else {
    token += c_.shape->kv_offsets[owner.sequence];
  }
  const char* k_head = static_cast<const char*>(kv.k) + owner.kv_head * kv.k_stride.head;
  const char* v_head = static_cast<const char*>(kv.v) + owner.kv_head * kv.v_stride.head;
  for (int begin = 0; begin < kTileKeys; token = 0, ++table) {
    const int count = static_cast<int>(std::min<std::int64_t>(kTileKeys - begin, page_size - token));
    const std::uint64_t seen = (keys.any >> begin) & (~0ull >> (64 - count));
    const std::int64_t page = seen != 0 && table != nullptr ? *table : 0;
    place_rows(*c_.kernels, keys.k + begin, k_head + page * kv.k_stride.page + token * kv.k_stride.token,
               kv.k_stride.token, count, seen);
    place_rows(*c_.kernels, keys.v + begin, v_head + page * kv.v_stride.page + token * kv.v_stride.token,
               kv.v_stride.token, count, seen);
    if (kv.format.scale == KvScaleKind::token_head)
      find_scales(keys, owner, begin, begin + count, page, token);
    begin += count;
  }
}

// Of keys [begin, end) of the tile, which lie in one page from `token` on.
void Block::find_scales(TileKeys& keys, Owner owner, int begin, int end, std::int64_t page,
                        std::int64_t token) const {
  const KvView& kv = c_.args->kv;
  std::int64_t at =
      page * kv.scale_stride.page + owner.kv_head * kv.scale_stride.head + token * kv.scale_stride.token;
  for (int j = begin; j < end; ++j, at += kv.scale_stride.token) {
    const bool seen = (keys.any >> j & 1) != 0;
    const auto read = [&](const float* base) {
      return seen ? *reinterpret_cast<const float*>(reinterpret_cast<const char*>(base) + at) : 0.0f;
    };
    keys.k_scale[j] = read(kv.k_scale);
    keys.v_scale[j] = read(kv.v_scale);
  }
}

void Block::next_tile(TileKeys& keys, std::int32_t tile, bool listed) const {
  constexpr std::int32_t kTiles = kSplitKeys / kTileKeys;
  const std::int32_t end = (unit_.first_split + unit_.splits) * kTiles;
  for (keys.tile = tile; keys.tile < end; ++keys.tile) {
    if (!find_masks(keys)) continue;
    find_rows(keys, owner_, listed);
    return;
  }
  keys.tile = -1;
}

// The first tile of other work, as its last row sees it; false where that row sees nothing of the tile.
bool Block::find_first(TileKeys& keys, const Work& work, bool listed) const {
  const Unit& unit = c_.layout->units[work.unit];
  if (unit.splits == 0) return false;
  const RowView view = row_view(*c_.shape, unit.sequence, unit.row + unit.rows - 1);
  keys.tile = std::max(unit.first_split * (kSplitKeys / kTileKeys), hull(view).begin / kTileKeys);
  keys.any = tile_mask(view, keys.tile * kTileKeys);
  if (keys.any == 0) return false;
  find_rows(keys, {unit.sequence, work.lane / g_.head_blocks}, listed);
  return true;
}

void Block::prepare_args() {
  const Args& args = *c_.args;
  for (std::int32_t r = 0; r < unit_.rows; ++r)
    scratch_.views[r] = row_view(*c_.shape, unit_.sequence, unit_.row + r);
  const bool packed = rows_ > kFewRows;
  for (int m = 0; m < rows_; ++m) {
    const float* q =
        static_cast<const float*>(args.q) + step_row(m) * args.q_row_stride + head(m) * args.q_head_stride;
    float* ordered = scratch_.q + std::int64_t{m} * g_.qk_dim;
    (packed ? c_.kernels->q_by_chain : c_.kernels->q_by_lane)[g_.element](q, g_.qk_dim, ordered);
    q_[m] = ordered;
  }
  const KvView& kv = args.kv;
  const std::int64_t k_bytes = g_.qk_dim * kElementBytes[g_.element];
  const std::int64_t v_bytes = g_.v_dim * kElementBytes[g_.element];
  stretches_ = !packed && kv.format.scale != KvScaleKind::token_head && kv.k_stride.token == k_bytes &&
               kv.v_stride.token == v_bytes && c_.kernels->takes_stretch(g_.qk_dim, g_.v_dim);
  tile_.rows = rows_;
  tile_.qk_dim = g_.qk_dim;
  tile_.v_dim = g_.v_dim;
  tile_.acc_stride = g_.acc_stride;
  tile_.packed = packed;
  tile_.q_lanes = q_;
  tile_.q_packed = scratch_.q;
  tile_.scale = args.scale * args.q_descale * c_.kernels->unit[g_.element];
  if (args.kv.format.scale == KvScaleKind::tensor) tile_.scale *= args.kv.k_scale[0];
  if (args.kv.format.scale == KvScaleKind::layer_head) tile_.scale *= args.kv.k_scale[owner_.kv_head];
  tile_.softcap = args.softcap;
  tile_.max = max_;
  tile_.sum = sum_;
  tile_.scores = scratch_.scores;
  tile_.alpha = alpha_;
  tile_.chains = scratch_.chains;
  tile_.k_pack = scratch_.k_pack;
  tile_.v_pack = scratch_.v_pack;
}

void Block::set_tile(const TileKeys& keys, const void* const* next_k) {
  tile_.acc = scratch_.acc;
  tile_.k = keys.k;
  tile_.v = keys.v;
  tile_.next_k = next_k;
  tile_.any = keys.any;
  tile_.stretch = keys.stretch;
  tile_.fresh = fresh_;
  tile_.visible = keys.visible;
  const bool scaled = c_.args->kv.format.scale == KvScaleKind::token_head;
  tile_.k_scale = scaled ? keys.k_scale : nullptr;
  tile_.v_scale = scaled ? keys.v_scale : nullptr;
}

void Block::clear_split() {
  std::fill_n(max_, rows_, kNoKey);
  std::fill_n(sum_, rows_, 0.0f);
  fresh_ = true;
}

// The splits of a run that the rows see are all in this unit.
bool Block::holds_run_of(std::int32_t split) const {
  if (unit_.group < 0) return true;
  const Unit& whole = c_.layout->groups[unit_.group].whole;
  const std::int32_t run = split / kRunSplits * kRunSplits;
  return unit_.first_split <= std::max(run, whole.first_split) &&
         std::min(run + kRunSplits, whole.first_split + whole.splits) <= unit_.first_split + unit_.splits;
}

// What the split in hand adds to its run, or leaves for the others of the group.
void Block::end_split(std::int32_t split) {
  if (!holds_run_of(split)) return store_records(split, 1, max_, sum_, scratch_.acc);
  if (run_empty_) {
    std::copy_n(max_, rows_, run_max_);
    std::copy_n(sum_, rows_, run_sum_);
    std::swap(scratch_.run_acc, scratch_.acc);
    run_empty_ = false;
  } else {
    fold({run_max_, run_sum_, scratch_.run_acc}, max_, sum_, scratch_.acc);
  }
  if ((split + 1) % kRunSplits == 0 || split + 1 == unit_.first_split + unit_.splits) end_run(split);
}

void Block::end_run(std::int32_t split) {
  if (unit_.group >= 0) {
    const std::int32_t first = std::max(split / kRunSplits * kRunSplits, unit_.first_split);
    store_records(first, split + 1 - first, run_max_, run_sum_, scratch_.run_acc);
  } else {
    fold({total_max_, total_sum_, scratch_.total_acc}, run_max_, run_sum_, scratch_.run_acc);
  }
  run_empty_ = true;
}

// Splits [split, split + splits) joined, in the place of the first.
void Block::store_records(std::int32_t split, std::int32_t splits, const float* max, const float* sum,
                          const float* acc) const {
  for (int m = 0; m < rows_; ++m) {
    float* to = record(m, split);
    std::copy_n(acc + std::int64_t{m} * g_.acc_stride, g_.acc_stride, to);
    to[g_.acc_stride] = max[m];
    to[g_.acc_stride + 1] = sum[m];
    to[g_.acc_stride + 2] = static_cast<float>(splits);
  }
}

void Block::fold(Sums into, const float* max, const float* sum, const float* acc) {
  for (int m = 0; m < rows_; ++m) parts_[m] = acc + std::int64_t{m} * g_.acc_stride;
  c_.kernels->fold(rows_, g_.acc_stride, into.max, into.sum, into.acc, max, sum, parts_);
}

// Of the unit whose first split this is; the number of its splits.
std::int32_t Block::fold_records(Sums into, std::int32_t split) {
  for (int m = 0; m < rows_; ++m) {
    parts_[m] = record(m, split);
    max_[m] = parts_[m][g_.acc_stride];
    sum_[m] = parts_[m][g_.acc_stride + 1];
  }
  c_.kernels->fold(rows_, g_.acc_stride, into.max, into.sum, into.acc, max_, sum_, parts_);
  return static_cast<std::int32_t>(parts_[0][g_.acc_stride + 2]);
}

// The last unit of a group to arrive joins all splits in key order, run by run.
void Block::join_group() {
  const Group& group = c_.layout->groups[unit_.group];
  std::atomic_ref<std::int32_t> arrived(c_.layout->arrivals[std::int64_t{unit_.group} * g_.lanes() + lane_]);
  if (arrived.fetch_add(unit_.splits, std::memory_order_acq_rel) + unit_.splits < group.whole.splits) return;
  arrived.store(0, std::memory_order_relaxed);
  const std::int32_t end = group.whole.first_split + group.whole.splits;
  const Sums run{run_max_, run_sum_, scratch_.run_acc};
  const Sums total{total_max_, total_sum_, scratch_.total_acc};
  for (std::int32_t s = group.whole.first_split; s < end;) {
    const std::int32_t run_end = std::min(end, (s / kRunSplits + 1) * kRunSplits);
    std::fill_n(run.max, rows_, kNoKey);
    while (s < run_end) s += fold_records(run, s);
    fold(total, run.max, run.sum, run.acc);
  }
  for (int m = 0; m < rows_; ++m)
    write_row(m, total.max[m], total.sum[m], total.acc + std::int64_t{m} * g_.acc_stride);
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
  if (args.sink != nullptr) whole += std::exp2(args.sink[head(m)] * std::numbers::log2e - max);
  double value = c_.kernels->unit[g_.element];
  if (args.kv.format.scale == KvScaleKind::tensor) value *= args.kv.v_scale[0];
  if (args.kv.format.scale == KvScaleKind::layer_head) value *= args.kv.v_scale[owner_.kv_head];
  c_.kernels->write[g_.element](out, acc, static_cast<float>(value / whole), g_.v_dim);
  if (lse != nullptr)
    *lse = static_cast<float>((max + std::log2(static_cast<double>(sum))) * std::numbers::ln2);
}

void Block::run(const Work* next_work) {
  constexpr std::int32_t kTiles = kSplitKeys / kTileKeys;
  prepare_args();
  TileKeys* now = scratch_.keys[0];
  TileKeys* next = scratch_.keys[1];
  next_tile(*now, unit_.first_split * kTiles, false);
  // A split that no row sees is stored too: the group joins all of them.
  std::int32_t split = unit_.first_split;
  clear_split();
  while (now->tile >= 0) {
    const bool listed = !now->stretch;
    next_tile(*next, now->tile + 1, listed);
    const bool last = next->tile < 0;
    const bool known = !last || (next_work != nullptr && find_first(*next, *next_work, listed));
    for (; split < now->tile / kTiles; ++split) end_split(split), clear_split();
    set_tile(*now, known ? next->k : nullptr);
    c_.kernels->tile[g_.element](tile_);
    fresh_ = false;
    if (last) break;
    std::swap(now, next);
  }
  for (; split < unit_.first_split + unit_.splits; ++split) end_split(split), clear_split();
  if (unit_.group >= 0) return join_group();
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

void attend(const AttendContext& context, const Work& work, const Work* next, int thread) {
  Block(context, work, thread).run(next);
}

void clear_outside(const AttendContext& context) {
  const StepShape& shape = *context.shape;
  const std::int64_t begin = shape.batch > 0 ? shape.q_offsets[0] : 0;
  const std::int64_t end = shape.batch > 0 ? shape.q_offsets[shape.batch] : 0;
  for (std::int64_t row = 0; row < begin; ++row) clear_row(context, row);
  for (std::int64_t row = end; row < shape.total_q; ++row) clear_row(context, row);
}

}  // namespace quire::attention::cpu
