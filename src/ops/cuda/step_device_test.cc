// begin_step and end_step against the CPU's on random steps: sequences come, grow and go, deltas repeat.
#include "ops/cuda/testing.h"

namespace quire::ops::cuda {
namespace {

using testing::Rig;

constexpr int kSlots = 40, kHistory = 300, kTable = 80, kBatch = 24, kTotalQ = 700, kGroups = 2;
constexpr std::int32_t kPageSize[kGroups] = {16, 7};

// All that a step reads and writes, as host vectors.
struct World {
  std::vector<std::int32_t> length = std::vector<std::int32_t>(kSlots), last = length, prompt = length;
  std::vector<std::int32_t> history = std::vector<std::int32_t>(kSlots * kHistory, -1);
  std::vector<std::uint32_t> slots[kGroups], rows[kGroups];
  std::vector<std::int64_t> write[kGroups];
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(kTotalQ, -7), positions = tokens,
                            offsets = std::vector<std::int32_t>(kBatch + 1, -7),
                            kv_lens = std::vector<std::int32_t>(kBatch, -7);
  World() {
    for (int g = 0; g < kGroups; ++g) {
      slots[g].assign(kSlots * kTable, 0);
      rows[g].assign(kBatch * kTable, 999);
      write[g].assign(kTotalQ, -7);
    }
  }
};

struct Inputs {
  std::vector<StepRow> rows;
  std::vector<std::int32_t> literals;
  std::vector<TableDelta> deltas;
  std::int32_t total_q = 0;
};

Inputs random_step(const World& world, std::mt19937& random, bool decode_only) {
  Inputs in;
  const auto below = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  std::vector<std::int32_t> order;
  for (std::int32_t s = 1; s < kSlots; ++s) order.push_back(s);
  std::shuffle(order.begin(), order.end(), random);
  for (int r = 0; r < kBatch; ++r) {
    StepRow row;
    row.q_begin = in.total_q;
    row.slot = below(6) == 0 ? 0 : order[static_cast<std::size_t>(r)];
    const std::int32_t room = kHistory - world.length[static_cast<std::size_t>(row.slot)];
    row.q_len = decode_only || room < 40 ? 1 : 1 + below(30);
    if (row.slot != 0 && (row.q_len > 1 || below(2) == 0)) {
      row.literal = static_cast<std::int32_t>(in.literals.size());
      for (int t = 0; t < row.q_len; ++t) in.literals.push_back(below(1000));
    }
    if (row.slot != 0 && room < 2) row.slot = 0;
    in.total_q += row.q_len;
    in.rows.push_back(row);
  }
  in.total_q += decode_only ? 0 : 9;
  // Many deltas, some of the same place: the later one counts.
  const int count = below(3) == 0 ? 900 : below(40);
  for (int i = 0; i < count; ++i) {
    if (i > 0 && below(3) == 0) {
      TableDelta again = in.deltas[static_cast<std::size_t>(below(i))];
      again.page = static_cast<std::uint32_t>(below(5000));
      in.deltas.push_back(again);
    } else {
      in.deltas.push_back(
          {below(kGroups), 1 + below(kSlots - 1), below(kTable), static_cast<std::uint32_t>(below(5000))});
    }
  }
  return in;
}

template <class F>
BeginStep begin_args(World& w, const Inputs& in, std::int32_t* count, F&& place) {
  BeginStep s;
  s.state = {place(w.length), place(w.last), place(w.prompt), place(w.history), kHistory};
  s.batch = kBatch;
  s.total_q = in.total_q;
  s.padded_kv_len = 3;
  s.group_count = kGroups;
  s.delta_count = count;
  for (int g = 0; g < kGroups; ++g)
    s.groups[g] = {place(w.slots[g]), place(w.rows[g]), kTable, kPageSize[g], place(w.write[g])};
  s.tokens = place(w.tokens);
  s.positions = place(w.positions);
  s.q_offsets = place(w.offsets);
  s.kv_lens = place(w.kv_lens);
  return s;
}

TEST(BeginStepDevice, EqualsTheCpuOverManySteps) {
  Rig rig;
  std::mt19937 random(5);
  World host;
  for (std::int32_t s = 1; s < kSlots; ++s) {
    host.length[static_cast<std::size_t>(s)] = s * 2;
    host.last[static_cast<std::size_t>(s)] = 100 + s;
  }
  World mirror = host;  // the device's state, as host vectors between steps
  for (int step = 0; step < 12; ++step) {
    const Inputs in = random_step(host, random, step % 2 == 0);
    auto count = static_cast<std::int32_t>(in.deltas.size());
    BeginStep cpu_args = begin_args(host, in, &count, [](auto& v) { return v.data(); });
    cpu_args.rows = in.rows.data();
    cpu_args.literals = in.literals.data();
    cpu_args.deltas = in.deltas.data();
    rig.host_ops->begin_step(cpu_args, *rig.host_stream);
    rig.host_ops->end_step({cpu_args.state, in.rows.data(), kBatch}, *rig.host_stream);

    std::int32_t* device_count = rig.upload(std::vector<std::int32_t>{count});
    BeginStep args = begin_args(mirror, in, device_count, [&](auto& v) { return rig.upload(v); });
    args.rows = rig.upload(in.rows);
    args.literals = rig.upload(in.literals);
    args.deltas = rig.upload(in.deltas);
    rig.ops->begin_step(args, *rig.stream);
    rig.ops->end_step({args.state, args.rows, kBatch}, *rig.stream);
    rig.finish();

    const auto take = [&](auto& into, const auto* from) { into = rig.download(from, into.size()); };
    take(mirror.length, args.state.length);
    take(mirror.history, args.state.history);
    take(mirror.tokens, args.tokens);
    take(mirror.positions, args.positions);
    take(mirror.offsets, args.q_offsets);
    take(mirror.kv_lens, args.kv_lens);
    EXPECT_EQ(mirror.length, host.length) << "step " << step;
    EXPECT_EQ(mirror.history, host.history);
    EXPECT_EQ(mirror.tokens, host.tokens);
    EXPECT_EQ(mirror.positions, host.positions);
    EXPECT_EQ(mirror.offsets, host.offsets);
    EXPECT_EQ(mirror.kv_lens, host.kv_lens);
    for (int g = 0; g < kGroups; ++g) {
      take(mirror.slots[g], args.groups[g].slot_table);
      take(mirror.rows[g], args.groups[g].row_table);
      take(mirror.write[g], args.groups[g].write_slot);
      EXPECT_EQ(mirror.slots[g], host.slots[g]) << "step " << step;
      EXPECT_EQ(mirror.rows[g], host.rows[g]) << "step " << step;
      EXPECT_EQ(mirror.write[g], host.write[g]) << "step " << step;
    }
    rig.kept.clear();
  }
}

}  // namespace
}  // namespace quire::ops::cuda
