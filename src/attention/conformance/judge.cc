#include "attention/conformance/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "attention/backends/reference/backend.h"
#include "base/check.h"
#include "tensor/values.h"

namespace quire::conformance {
namespace {

using attention::Problem;

// Largest and Frobenius error of a result, and what it is measured by.
struct Errors {
  double largest = 0;
  double squares = 0;
  double expected_squares = 0;
  double expected_largest = 0;
  std::int64_t count = 0;
  // Relative to the expected norm. A result that a sink has pressed to nothing is measured against `floor`
  // per element instead: there the absolute error says what matters.
  double frobenius(double floor) const {
    const double norm = std::max(std::sqrt(expected_squares), floor * std::sqrt(static_cast<double>(count)));
    return norm > 0 ? std::sqrt(squares) / norm : (squares > 0 ? 1e30 : 0);
  }
  void add(double got, double expected) {
    const double error = std::fabs(got - expected);
    largest = std::max(largest, error);
    squares += error * error;
    expected_squares += expected * expected;
    ++count;
    expected_largest = std::max(expected_largest, std::fabs(expected));
  }
};

struct Gates {
  double largest = 0;
  double frobenius = 0;
  double floor = 0;  // of the norm, per element
};

// Twice the error of the plain float32 computation plus rounding noise: of scores, which grows with their
// size, and of the result's own type. 2e-6 in the norm holds for scores within 64; beyond, a rounding of the
// score itself is more. A softcap adds a few roundings, which a row of few keys shows undiluted.
Gates gates_of(const Logical& l, const Expected& expected, const Expected& plain) {
  Errors yardstick;
  for (std::size_t i = 0; i < expected.out.size(); ++i) yardstick.add(plain.out[i], expected.out[i]);
  const double stored = l.problem.q_type == DType::f32 ? 0 : unit_roundoff(l.problem.q_type);
  // Before the softcap: where the cap is not yet flat, the rounding of a large product passes through it.
  const double score = plain.score_max;
  Gates gates;
  gates.largest = 2 * yardstick.largest + std::ldexp(4 + score, -23) * plain.value_max +
                  stored * yardstick.expected_largest;
  gates.floor = std::ldexp(plain.value_max, -12);
  gates.frobenius = (score <= 64 ? 2e-6 : std::ldexp(score, -23)) + stored;
  if (l.softcap > 0) {
    const double capped = std::min<double>(score, l.softcap);
    gates.largest += std::ldexp(capped, -22) * plain.value_max;
    gates.frobenius += std::ldexp(capped, -22);
  }
  if (score > 16) gates.frobenius = std::max(gates.frobenius, 2 * yardstick.frobenius(gates.floor));
  return gates;
}

Error worse(const Error& a, const Error& b) { return b.ratio() > a.ratio() ? b : a; }

// out [rows, heads, dim] given row by row against what is expected.
template <class OutRow>
Finding compare_out(const Problem& p, int rows, const Expected& expected, const Gates& gates,
                    OutRow out_row) {
  Finding finding;
  Errors errors;
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < p.q_heads; ++h) {
      const std::vector<float> out = out_row(r, h);
      const auto at = static_cast<std::size_t>(r * p.q_heads + h);
      const bool empty = expected.lse[at] == -std::numeric_limits<double>::infinity();
      for (int d = 0; d < p.v_dim; ++d) {
        const float got = out[static_cast<std::size_t>(d)];
        if (!std::isfinite(got)) finding.broken = fmt::format("row {} head {} holds {}", r, h, got);
        if (empty && got != 0) finding.broken = fmt::format("row {} sees no key and is {}, not 0", r, got);
        errors.add(got, expected.out[at * static_cast<std::size_t>(p.v_dim) + static_cast<std::size_t>(d)]);
      }
      if (!finding.broken.empty()) return finding;
    }
  finding.worst = worse({errors.largest, gates.largest, "largest error"},
                        {errors.frobenius(gates.floor), gates.frobenius, "relative Frobenius error"});
  return finding;
}

template <class Lse>
Finding compare_lse(const Problem& p, int rows, const Expected& expected, Lse lse) {
  Finding finding;
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < p.q_heads; ++h) {
      const double want = expected.lse[static_cast<std::size_t>(r * p.q_heads + h)];
      const double got = lse(r, h);
      if (std::isinf(want) ? got != want : !std::isfinite(got)) {
        finding.broken = fmt::format("lse of row {} head {} is {}, not {}", r, h, got, want);
        return finding;
      }
      if (std::isfinite(want))
        finding.worst = worse(finding.worst,
                              {std::fabs(got - want), 1e-4 + std::ldexp(std::fabs(want), -16), "lse error"});
    }
  return finding;
}

// The reference row on the same pages, q and out in float32.
Expected by_reference(const Placed& placed, const Logical& l, Machine& machine) {
  static const attention::Backend reference = attention::reference_backend();
  Problem problem = placed.problem();
  problem.q_type = DType::f32;
  const Place& oracle = machine.oracle;
  auto instance = reference.make(problem, *oracle.device);
  const auto total =
      static_cast<std::size_t>(placed.total_rows()) * static_cast<std::size_t>(problem.q_heads);
  std::vector<float> out(total * static_cast<std::size_t>(problem.v_dim));
  std::vector<float> lse(total);
  Guarded workspace(instance->workspace_bytes(placed.limits(oracle.threads)));
  const attention::PlanBuffer buffer{workspace.data(), workspace.size()};
  instance->plan(placed.shape(), buffer, *oracle.stream);
  instance->run(placed.shape(), placed.oracle_args(out.data(), lse.data()), buffer, *oracle.stream);
  oracle.stream->synchronize();
  Expected expected;
  const auto lead = static_cast<std::size_t>(placed.lead_rows()) * static_cast<std::size_t>(problem.q_heads);
  const auto count = static_cast<std::size_t>(l.rows()) * static_cast<std::size_t>(problem.q_heads);
  const auto dim = static_cast<std::size_t>(problem.v_dim);
  expected.out.assign(out.begin() + static_cast<std::ptrdiff_t>(lead * dim),
                      out.begin() + static_cast<std::ptrdiff_t>((lead + count) * dim));
  expected.lse.assign(lse.begin() + static_cast<std::ptrdiff_t>(lead),
                      lse.begin() + static_cast<std::ptrdiff_t>(lead + count));
  return expected;
}

}  // namespace

void Finding::join(const Finding& other) {
  if (broken.empty()) broken = other.broken;
  worst = worse(worst, other.worst);
}

Result<Machine> open_machine(std::string_view device) {
  Machine machine;
  const auto open = [](std::string_view name, int threads) -> Result<Place> {
    Place place;
    QUIRE_TRY(opened, platform::open_device(name, {.compute = threads}));
    place.stream = opened->make_stream();
    place.device = std::move(opened);
    place.threads = threads;
    return place;
  };
  const bool cpu = device == "cpu";
  for (int threads : cpu ? std::vector<int>{2, 1, 3} : std::vector<int>{1}) {
    QUIRE_TRY(place, open(device, threads));
    machine.places.push_back(std::move(place));
  }
  QUIRE_TRY(oracle, open("cpu", 2));
  machine.oracle = std::move(oracle);
  if (!cpu) machine.memory = std::make_unique<DeviceMemory>(*machine.places[0].device);
  return machine;
}

Placement Judge::placement_of(const Case& c) const {
  return {.page_size = c.problem.page_size,
          .order = c.problem.order,
          .pages = c.pages,
          .loose = c.loose,
          .safe_dropped = fault_ != nullptr,
          .seed = c.seed};
}

// Recorded while all lengths are 0, replayed with the real ones.
void Judge::replay(Placed& placed, attention::Attention& row, OnDevice* on_device,
                   attention::PlanBuffer buffer, platform::Stream& stream) {
  placed.set_lengths(false);
  if (on_device != nullptr) on_device->upload(placed.shape(), placed.args(), stream);
  stream.begin_capture();
  if (on_device != nullptr) {
    on_device->record(stream);
  } else {
    row.plan(placed.shape(), buffer, stream);
    row.run(placed.shape(), placed.args(), buffer, stream);
  }
  const auto graph = stream.end_capture();
  stream.launch(*graph);
  stream.synchronize();
  placed.set_lengths(true);
  placed.poison_outputs_in_place();
  if (on_device != nullptr) on_device->upload(placed.shape(), placed.args(), stream);
  stream.launch(*graph);
  stream.synchronize();
  if (on_device != nullptr) on_device->download(buffer, stream);
}

std::string Judge::run(Placed& placed, int place, How how) {
  Place& here = machine_.places[static_cast<std::size_t>(place)];
  platform::Stream& stream = *here.stream;
  auto instance = row_.make(placed.problem(), *here.device);
  if (instance == nullptr) return "make() gave nothing for a problem that supports() accepted";
  const std::int64_t bytes = instance->workspace_bytes(placed.limits(here.threads));
  const std::uint8_t fill = row_.caps.workspace_zeroed_once ? 0 : 0xff;
  OnDevice* on_device = nullptr;
  if (machine_.memory != nullptr) {
    auto wrapped =
        std::make_unique<OnDevice>(std::move(instance), placed.problem(), placed, *machine_.memory);
    wrapped->make_workspace(bytes, fill, stream);
    on_device = wrapped.get();
    instance = std::move(wrapped);
  }
  if (fault_ != nullptr) instance = with_fault(*fault_, placed.problem(), std::move(instance));
  Guarded workspace(on_device != nullptr ? 64 : bytes, fill);
  const attention::PlanBuffer buffer{workspace.data(), workspace.size()};
  if (how == How::captured) {
    replay(placed, *instance, on_device, buffer, stream);
  } else {
    instance->plan(placed.shape(), buffer, stream);
    instance->run(placed.shape(), placed.args(), buffer, stream);
    stream.synchronize();
  }
  if (!workspace.intact()) return "wrote outside its plan buffer";
  const char* stray = placed.stray_write();
  return stray != nullptr ? stray : "";
}

Status Judge::check_room(const Logical& l) const {
  constexpr std::int64_t kAtOnce = 3;                        // the parts of a merge; two runs and a third
  constexpr std::int64_t kBeside = std::int64_t{256} << 20;  // rows, tables, other page sizes
  const std::int64_t bytes = kAtOnce * Placed::arena_bytes(l, placement_of(l.origin)) + kBeside;
  if (Reserved::possible(bytes)) return {};
  return no_resources(fmt::format(
      "{:.1f} GiB of address space (next to no memory) are needed at a time and the system refuses them: "
      "lift this process's limit (ulimit -v unlimited), or allow overcommitting where sysctl "
      "vm.overcommit_memory is 2; the case is {}",
      static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30), name_of(l.origin)));
}

Finding Judge::accuracy(const Logical& l) {
  Placed placed(l, placement_of(l.origin));
  Finding finding;
  finding.broken = run(placed, 0, How::eager);
  if (!finding.broken.empty()) return finding;
  // The reference row is judged by a computation that knows neither pages nor tables.
  const Expected expected = row_.name == "reference" ? plain_double(l) : by_reference(placed, l, machine_);
  const bool by_units = row_.name != "reference" && l.problem.q_type != DType::f32;
  const Gates gates = gates_of(l, expected, by_units ? plain_rounded(l) : plain_float(l));
  finding.join(
      compare_out(l.problem, l.rows(), expected, gates, [&](int r, int h) { return placed.out_row(r, h); }));
  if (l.has(attention::kLse))
    finding.join(compare_lse(l.problem, l.rows(), expected, [&](int r, int h) { return placed.lse(r, h); }));
  return finding;
}

bool Judge::can_merge(const Problem& problem) const {
  Problem part = problem;
  part.q_type = DType::f32;
  part.features = (part.features | attention::kPart | attention::kLse) & ~attention::kSink;
  if (!supports(row_, part)) return true;
  part.q_type = problem.q_type;
  return !supports(row_, part);
}

// `args` has host pointers; with a fault the merge is the host's.
void Judge::merge(const attention::MergeArgs& args) {
  Place& here = machine_.memory != nullptr && fault_ != nullptr ? machine_.oracle : machine_.places[0];
  platform::Stream& stream = *here.stream;
  if (machine_.memory == nullptr || fault_ != nullptr) {
    merge_with_fault(fault_, args, stream);
    return stream.synchronize();
  }
  DeviceMemory& memory = *machine_.memory;
  memory.reset();
  const std::int64_t lse_bytes = args.rows * args.heads * std::int64_t{sizeof(float)};
  const std::int64_t out_bytes = lse_bytes * args.dim;
  const auto in = [&](const float* host, std::int64_t bytes) -> float* {
    if (host == nullptr) return nullptr;
    char* target = memory.take(bytes);
    stream.copy(target, host, bytes);
    return reinterpret_cast<float*>(target);
  };
  attention::MergeArgs moved = args;
  for (int i = 0; i < args.part_count; ++i)
    moved.parts[i] = {in(args.parts[i].out, out_bytes), in(args.parts[i].lse, lse_bytes)};
  moved.sink = in(args.sink, args.heads * std::int64_t{sizeof(float)});
  moved.out = in(args.out, out_bytes);
  moved.lse = in(args.lse, lse_bytes);
  attention::merge(moved, stream);
  stream.copy(args.out, moved.out, out_bytes);
  stream.copy(args.lse, moved.lse, lse_bytes);
  stream.synchronize();
}

Finding Judge::merged_parts(const Logical& l) {
  constexpr int kParts = 3;
  Logical whole = l;
  // Rows that give no float32 have their parts rounded to their own type.
  whole.problem.q_type = DType::f32;
  whole.problem.features |= attention::kPart | attention::kLse;
  if (supports(row_, whole.problem)) whole.problem.q_type = l.problem.q_type;
  whole.problem.features = l.problem.features;
  whole.lead_rows = whole.tail_rows = 0;
  Placement placement = placement_of(l.origin);
  placement.loose = false;  // parts are dense
  std::vector<std::unique_ptr<Placed>> parts;
  std::vector<std::vector<float>> outs;
  outs.reserve(kParts);
  attention::MergeArgs args;
  Finding finding;
  for (int i = 0; i < kParts; ++i) {
    Logical part = whole;
    part.sink.clear();
    part.problem.features = (part.problem.features | attention::kPart | attention::kLse) & ~attention::kSink;
    for (Sequence& s : part.sequences) {
      // Borders at a third and at two thirds of the keys' page-free middle; short sequences get empty parts.
      const int begin = l.has(attention::kPart) ? s.part_begin : 0;
      const int end = l.has(attention::kPart) ? s.part_end : s.kv_len;
      s.part_begin = begin + (end - begin) * i / kParts;
      s.part_end = begin + (end - begin) * (i + 1) / kParts;
    }
    parts.push_back(std::make_unique<Placed>(part, placement));
    finding.broken = run(*parts.back(), 0, How::eager);
    if (!finding.broken.empty()) return finding;
    std::vector<float>& dense = outs.emplace_back();
    for (int r = 0; r < whole.rows(); ++r)
      for (int h = 0; h < whole.problem.q_heads; ++h) {
        const std::vector<float> row = parts.back()->out_row(r, h);
        dense.insert(dense.end(), row.begin(), row.end());
      }
    args.parts[i] = {dense.data(), parts.back()->args().lse};
  }
  const Problem& p = whole.problem;
  std::vector<float> out(static_cast<std::size_t>(whole.rows()) *
                         static_cast<std::size_t>(p.q_heads * p.v_dim));
  std::vector<float> lse(static_cast<std::size_t>(whole.rows() * p.q_heads));
  args.part_count = kParts;
  args.rows = whole.rows();
  args.heads = p.q_heads;
  args.dim = p.v_dim;
  args.out = out.data();
  args.out_row_stride = std::int64_t{p.q_heads} * p.v_dim;
  args.lse = lse.data();
  args.sink = whole.sink.empty() ? nullptr : whole.sink.data();
  merge(args);

  const Expected expected = plain_double(whole);
  Gates gates = gates_of(whole, expected, p.q_type != DType::f32 ? plain_rounded(whole) : plain_float(whole));
  gates.largest *= 2;  // parts are rounded once more
  gates.frobenius *= 2;
  finding.join(compare_out(p, whole.rows(), expected, gates, [&](int r, int h) {
    const float* at = out.data() + (static_cast<std::size_t>(r) * static_cast<std::size_t>(p.q_heads) +
                                    static_cast<std::size_t>(h)) *
                                       static_cast<std::size_t>(p.v_dim);
    return std::vector<float>(at, at + p.v_dim);
  }));
  finding.join(compare_lse(p, whole.rows(), expected,
                           [&](int r, int h) { return lse[static_cast<std::size_t>(r * p.q_heads + h)]; }));
  return finding;
}

}  // namespace quire::conformance
