#include "attention/backends/cpu/plan.h"

#include <algorithm>
#include <span>

#include "attention/backends/cpu/rows.h"
#include "base/carver.h"
#include "base/check.h"

namespace quire::attention::cpu {
namespace {

constexpr std::int64_t kAlign = 64;
using Carver = quire::Carver<kAlign>;
// Partial results of split sequences get at most this much, or what one row needs; sequences that find it
// full are not split.
constexpr std::int64_t kRecordBytes = 8ll << 20;
// What is left of a step is dealt in pieces of at most one part in this many per thread.
constexpr std::int32_t kPieces = 16;
// One lane in this many is dealt in small pieces, so that all threads end together.
constexpr std::int32_t kTailLanes = 8;
// A sequence with this many units of its own keeps its keys together.
constexpr std::int32_t kEnoughUnits = 16;

std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

KvElement element_of(DType type) {
  switch (type) {
    case DType::f32:
      return kF32;
    case DType::bf16:
      return kBf16;
    case DType::f16:
      return kF16;
    default:
      return kFp8;
  }
}

struct Bounds {
  std::int32_t batch = 0;
  std::int32_t total_q = 0;
  std::int32_t max_kv = 0;
};

std::int64_t max_blocks(const Geometry& g, const Bounds& b) {
  return std::int64_t{b.batch} + b.total_q / g.block_rows;
}

std::int64_t slot_bytes(const Geometry& g) {
  // A slot's keys are in one unit of the head of the plan and in one of its tail.
  return std::int64_t{g.q_heads} * g.record_floats * std::int64_t{sizeof(float)} +
         std::int64_t{2 * (sizeof(Unit) + sizeof(Wave))};
}

// Slots that a step within the bounds can use at most.
std::int64_t slots_wanted(const Geometry& g, const Bounds& b) {
  const std::int64_t splits = ceil_div(b.max_kv, kSplitKeys);
  if (splits < 2) return 0;
  return std::min<std::int64_t>(b.total_q, std::int64_t{b.batch} * g.split_rows) * splits;
}

// Everything but units and records of splits.
std::int64_t fixed_bytes(const Geometry& g, const Bounds& b, int threads) {
  const std::int64_t blocks = max_blocks(g, b);
  Carver carver(nullptr);
  carver.take<PlanHeader>(1);
  carver.take<Group>(blocks);
  carver.take<std::int32_t>(blocks * g.lanes());
  carver.take<Unit>(2 * blocks);
  carver.take<Wave>(2 * blocks);
  carver.take<char>(threads * make_scratch(g, nullptr).bytes);
  return carver.used() + 3 * kAlign;  // what aligning units, waves and records may add
}

}  // namespace

Geometry make_geometry(const Problem& problem) {
  Geometry g;
  g.q_heads = problem.q_heads;
  g.kv_heads = problem.kv_heads;
  g.ratio = problem.q_heads / problem.kv_heads;
  g.qk_dim = problem.qk_dim;
  g.v_dim = problem.v_dim;
  // A block's queries, scores and sums should stay in the second-level cache with the packed tile.
  const std::int32_t rows = problem.qk_dim <= 128 ? kMaxRows : kMaxRows / 2;
  g.head_blocks = ceil_div(g.ratio, rows);
  g.block_heads = ceil_div(g.ratio, g.head_blocks);
  g.block_rows = rows / g.block_heads;
  g.acc_stride = ceil_div(g.v_dim, kPanel) * kPanel;
  g.record_floats = ceil_div(g.acc_stride + 3, 16) * 16;
  g.split_rows = std::max(kFewRows, g.block_rows * ((kEnoughUnits - 1) / g.lanes()));
  g.element = element_of(problem.kv.k_type);
  return g;
}

Scratch make_scratch(const Geometry& g, char* base) {
  Carver carver(base);
  const std::int64_t rows = g.max_rows();
  Scratch s;
  s.keys[0] = carver.take<TileKeys>(1);
  s.keys[1] = carver.take<TileKeys>(1);
  s.views = carver.take<RowView>(g.block_rows);
  s.q = carver.take<float>(rows * g.qk_dim);
  s.scores = carver.take<float>(rows * kTileKeys);
  s.chains = carver.take<float>(kParked);
  s.k_pack = carver.take<float>(std::int64_t{kTileKeys} * g.qk_dim);
  s.v_pack = carver.take<float>(std::int64_t{kTileKeys} * g.acc_stride);
  s.acc = carver.take<float>(rows * g.acc_stride);
  s.run_acc = carver.take<float>(rows * g.acc_stride);
  s.total_acc = carver.take<float>(rows * g.acc_stride);
  s.bytes = carver.used();
  return s;
}

std::int64_t plan_bytes(const Geometry& g, const Limits& limits) {
  const Bounds bounds{limits.max_batch, limits.max_total_q, limits.max_kv};
  const std::int64_t one_row = ceil_div(limits.max_kv, kSplitKeys);
  const std::int64_t slots =
      std::min(slots_wanted(g, bounds), std::max(one_row, kRecordBytes / slot_bytes(g)));
  return fixed_bytes(g, bounds, limits.threads) + slots * slot_bytes(g);
}

PlanLayout make_layout(const Geometry& g, const StepShape& shape, PlanBuffer buffer, int threads) {
  const Bounds bounds{shape.batch, shape.total_q, shape.max_kv};
  const std::int64_t fixed = fixed_bytes(g, bounds, threads);
  QUIRE_CHECK(fixed <= buffer.bytes, "plan buffer of {} bytes, batch {}, rows {}, threads {} need {}",
              buffer.bytes, shape.batch, shape.total_q, threads, fixed);
  PlanLayout layout;
  const std::int64_t blocks = max_blocks(g, bounds);
  layout.slot_capacity = std::min(slots_wanted(g, bounds), (buffer.bytes - fixed) / slot_bytes(g));
  layout.group_capacity = blocks;
  layout.unit_capacity = 2 * (blocks + layout.slot_capacity);
  Carver carver(static_cast<char*>(buffer.data));
  layout.header = carver.take<PlanHeader>(1);
  layout.groups = carver.take<Group>(blocks);
  layout.arrivals = carver.take<std::int32_t>(blocks * g.lanes());
  layout.units = carver.take<Unit>(layout.unit_capacity);
  layout.waves = carver.take<Wave>(layout.unit_capacity);
  layout.threads = threads;
  layout.scratch_bytes = make_scratch(g, nullptr).bytes;
  layout.scratch = carver.take<char>(threads * layout.scratch_bytes);
  layout.records = carver.take<float>(layout.slot_capacity * g.q_heads * g.record_floats);
  layout.bytes = carver.used();
  QUIRE_CHECK(layout.bytes <= buffer.bytes, "layout of {} bytes in {}", layout.bytes, buffer.bytes);
  return layout;
}

namespace {

// Fills a plan. Most lanes take their rows' keys whole, or in as few pieces as give each thread pages of its
// own: side by side in the heads of one page threads slow each other down (docs/PERFORMANCE.md), and what
// pieces leave behind must be written and read again. The last lanes are the tail, which is dealt in pieces
// that become ever smaller, so that all threads end together.
class Planner {
 public:
  Planner(const Geometry& g, const StepShape& shape, const PlanLayout& layout)
      : g_(g), shape_(shape), layout_(layout) {}
  void plan();

 private:
  template <class F>
  void each_block(F f) const;
  bool may_deal(const Unit& whole) const;
  bool has_slots(const Unit& whole) const;
  std::int32_t group_of(Unit& whole);
  void add_block(Unit whole);
  void add_pieces(Unit& whole, std::int32_t splits);
  void add_tail(Unit& whole);
  void put(const Unit& unit);
  void put_tail(const Unit& unit);
  void join_tail();
  void make_waves();

  const Geometry& g_;
  const StepShape& shape_;
  const PlanLayout& layout_;
  std::int32_t tail_lanes_ = 0;
  std::int32_t dealt_ = 0;  // blocks that may be dealt
  std::int64_t left_ = 0;   // splits of the blocks that are not in the tail yet, times its lanes
  std::int64_t share_ = 1;  // splits of a piece of the tail
  std::int32_t units_ = 0;
  std::int32_t tail_units_ = 0;  // kept at the end of the array, backwards
  std::int32_t groups_ = 0;
  std::int64_t slots_ = 0;
};

template <class F>
void Planner::each_block(F f) const {
  for (std::int32_t i = 0; i < shape_.batch; ++i) {
    const std::int32_t q_len = shape_.q_offsets[i + 1] - shape_.q_offsets[i];
    // The last block first: under a causal mask it has the most keys, and long work should not start last.
    for (std::int32_t block = ceil_div(q_len, g_.block_rows) - 1; block >= 0; --block) {
      Unit unit;
      unit.sequence = i;
      unit.row = block * g_.block_rows;
      unit.rows = std::min(g_.block_rows, q_len - unit.row);
      unit.lanes = g_.lanes();
      const KeySpan keys = hull(shape_, i, unit.row, unit.rows);
      if (keys.begin < keys.end) {
        unit.first_split = keys.begin / kSplitKeys;
        unit.splits = ceil_div(keys.end, kSplitKeys) - unit.first_split;
      }
      f(unit);
    }
  }
}

bool Planner::may_deal(const Unit& whole) const {
  const std::int32_t q_len = shape_.q_offsets[whole.sequence + 1] - shape_.q_offsets[whole.sequence];
  return q_len <= g_.split_rows;
}

bool Planner::has_slots(const Unit& whole) const {
  return slots_ + std::int64_t{whole.rows} * whole.splits <= layout_.slot_capacity;
}

// REQUIRES has_slots, if it has none yet.
std::int32_t Planner::group_of(Unit& whole) {
  if (whole.group >= 0) return whole.group;
  QUIRE_CHECK(groups_ < layout_.group_capacity, "more than {} groups", layout_.group_capacity);
  layout_.groups[groups_] = {whole, slots_};
  slots_ += std::int64_t{whole.rows} * whole.splits;
  return whole.group = groups_++;
}

void Planner::put(const Unit& unit) {
  QUIRE_CHECK(units_ + tail_units_ < layout_.unit_capacity, "more than {} units", layout_.unit_capacity);
  layout_.units[units_++] = unit;
}

void Planner::put_tail(const Unit& unit) {
  QUIRE_CHECK(units_ + tail_units_ < layout_.unit_capacity, "more than {} units", layout_.unit_capacity);
  layout_.units[layout_.unit_capacity - ++tail_units_] = unit;
}

// In pieces of `splits`, at least one. Where that is as long as a run, pieces end where runs do.
void Planner::add_pieces(Unit& whole, std::int32_t splits) {
  if (splits >= whole.splits) return put(whole);
  const std::int32_t end = whole.first_split + whole.splits;
  for (std::int32_t at = whole.first_split; at < end;) {
    Unit piece = whole;
    piece.group = group_of(whole);
    piece.first_split = at;
    const std::int32_t aim = at + splits;
    at = std::min(end, splits < kRunSplits ? aim : std::max(at + 1, aim / kRunSplits * kRunSplits));
    piece.splits = at - piece.first_split;
    put(piece);
  }
}

// Long pieces first, short ones last: each a fair share of what is left. As many as there are threads are of
// one length: they are run side by side.
void Planner::add_tail(Unit& whole) {
  const std::int32_t end = whole.first_split + whole.splits;
  std::int32_t at = whole.first_split;
  do {
    if (tail_units_ % layout_.threads == 0)
      share_ = std::max<std::int64_t>(1, left_ / (std::int64_t{kPieces} * layout_.threads));
    const auto splits = static_cast<std::int32_t>(std::min<std::int64_t>(share_, end - at));
    left_ -= std::int64_t{splits} * whole.lanes;
    if (splits == whole.splits) return put_tail(whole);
    Unit piece = whole;
    piece.group = group_of(whole);
    piece.first_split = at;
    piece.splits = splits;
    put_tail(piece);
    at += splits;
  } while (at < end);
}

void Planner::add_block(Unit whole) {
  if (!may_deal(whole)) return put(whole);
  const std::int32_t lanes = g_.lanes() - tail_lanes_;
  if (whole.splits < 2 || !has_slots(whole)) {
    left_ -= std::int64_t{whole.splits} * tail_lanes_;
    return put(whole);
  }
  Unit head = whole;
  head.lanes = lanes;
  if (lanes > 0) add_pieces(head, ceil_div(whole.splits, ceil_div(layout_.threads, dealt_)));
  Unit tail = whole;
  tail.group = head.group;
  tail.first_lane = lanes;
  tail.lanes = tail_lanes_;
  add_tail(tail);
}

void Planner::join_tail() {
  Unit* end = layout_.units + layout_.unit_capacity;
  std::reverse(end - tail_units_, end);
  std::copy(end - tail_units_, end, layout_.units + units_);
  units_ += tail_units_;
}

void Planner::make_waves() {
  PlanHeader& header = *layout_.header;
  header = {units_, groups_, 0, 0};
  for (std::int32_t at = 0; at < units_;) {
    const Unit& first = layout_.units[at];
    Wave wave{header.work_count, at, 0};
    while (at < units_ && wave.units < layout_.threads && layout_.units[at].first_lane == first.first_lane &&
           layout_.units[at].lanes == first.lanes)
      ++at, ++wave.units;
    layout_.waves[header.wave_count++] = wave;
    header.work_count += std::int64_t{wave.units} * first.lanes;
  }
}

void Planner::plan() {
  tail_lanes_ = ceil_div(g_.lanes(), kTailLanes);
  each_block([&](const Unit& unit) {
    if (!may_deal(unit)) return;
    left_ += std::int64_t{unit.splits} * tail_lanes_;
    ++dealt_;
  });
  each_block([&](const Unit& unit) { add_block(unit); });
  join_tail();
  make_waves();
  std::fill_n(layout_.arrivals, std::int64_t{groups_} * g_.lanes(), 0);
}

}  // namespace

void make_plan(const Geometry& g, const StepShape& shape, const PlanLayout& layout) {
  Planner(g, shape, layout).plan();
}

Work work_of(const PlanLayout& layout, std::int64_t index) {
  const std::span<const Wave> waves(layout.waves, static_cast<std::size_t>(layout.header->wave_count));
  const auto starts_later = [](std::int64_t i, const Wave& w) { return i < w.first_work; };
  const auto wave = std::upper_bound(waves.begin(), waves.end(), index, starts_later) - 1;
  const std::int64_t at = index - wave->first_work;
  const Unit& first = layout.units[wave->first_unit];
  return {wave->first_unit + at % wave->units,
          first.first_lane + static_cast<std::int32_t>(at / wave->units)};
}

}  // namespace quire::attention::cpu
