#include "attention/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "attention/bench/ceilings.h"
#include "attention/bench/cell.h"
#include "attention/other_names.h"
#include "base/check.h"
#include "base/text.h"
#include "platform/cpu/stream.h"

namespace quire::attention::bench {
namespace {

constexpr double kGateF32 =
    2e-6;  // rows whose arithmetic is float32; what the cache's type loses is not error
constexpr double kGate16 = 4e-3;
constexpr double kLongRun = 2.0;  // seconds; a cell that takes longer is timed once

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double wrong = 0;
  double size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = static_cast<double>(got[i]) - expected[i];
    wrong += off * off;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(wrong / size);
}

// One cell and what its rounds gave.
struct Running {
  AttentionCell cell;
  std::unique_ptr<Cell> data;
  std::vector<double> us;
  std::vector<double> fractions;
};

struct Bench {
  platform::Device& device;
  std::span<const Backend> table;
  const Options& options;
  std::unique_ptr<platform::Stream> stream;
  std::unique_ptr<CeilingMeter> meter;
  int threads = 1;
};

// The same kind of call on few keys, by the row and by the reference.
Status check(Bench& bench, const Backend& row, AttentionCell& cell) {
  CellSpec small = cell.spec;
  small.shape.batch = std::min(small.shape.batch, 2);
  small.shape.q_len = std::min(small.shape.q_len, 70);
  small.shape.context = std::min(small.shape.context, small.shape.q_len == 1 ? 1100 : 200);
  if (small.shape.shared > 0)
    small.shape.shared = small.shape.context / 2 / small.page_size * small.page_size;
  const Backend* reference = find_backend(bench.table, "reference");
  QUIRE_CHECK(reference != nullptr, "a table of {} rows without the reference", bench.table.size());
  QUIRE_TRY(ours, Cell::make(bench.device, *bench.stream, row, small, 0, bench.threads));
  QUIRE_TRY(theirs, Cell::make(bench.device, *bench.stream, *reference, small, 0, bench.threads));
  ours->enqueue();
  theirs->enqueue();
  cell.check_error = relative_error(ours->output(), theirs->output());
  cell.check_gate = problem_of(small, bench.device.info()).q_type == DType::f32 ? kGateF32 : kGate16;
  return {};
}

Result<Running> start(Bench& bench, const CellSpec& spec) {
  Running r;
  r.cell.spec = spec;
  const Problem problem = problem_of(spec, bench.device.info());
  r.cell.call = to_string(problem.phase);
  r.cell.kv_dtype = to_string(spec.kv);
  const Backend* row = find_backend(bench.table, spec.backend);
  if (row == nullptr)
    return bad_input(fmt::format("no attention backend is called {}: use one of {}{}", spec.backend,
                                 comma_list(bench.table, &Backend::name), name_elsewhere(spec.backend)));
  if (spec.shape.q_len > spec.shape.context)
    return bad_input(fmt::format("a query of {} rows has a context of {} keys: use --context {} or more",
                                 spec.shape.q_len, spec.shape.context, spec.shape.q_len));
  if (spec.shape.shared % spec.page_size != 0 || spec.shape.shared > spec.shape.context - spec.shape.q_len)
    return bad_input(
        fmt::format("a shared stretch of {} keys: give whole pages of {} that end before the {} new rows",
                    spec.shape.shared, spec.page_size, spec.shape.q_len));
  if (const auto reason = supports(*row, problem)) {
    r.cell.refused = reason->text;
    return r;
  }
  QUIRE_TRY_STATUS(check(bench, *row, r.cell));
  if (!(r.cell.check_error <= r.cell.check_gate)) return r;
  QUIRE_TRY(data, Cell::make(bench.device, *bench.stream, *row, spec, bench.meter->rotation_bytes(),
                             bench.threads));
  r.data = std::move(data);
  return r;
}

// Seconds of one layer, averaged over whole passes.
double time_layer(Bench& bench, Cell& cell) {
  std::int64_t runs = 0;
  const double begin = steady_now();
  double end = begin;
  do {
    if (cell.recorded())
      cell.replay();
    else
      cell.enqueue();
    bench.stream->synchronize();
    runs += cell.recorded() ? cell.runs() : cell.layers();
    end = steady_now();
  } while (end - begin < bench.options.round_seconds);
  return (end - begin) / static_cast<double>(runs);
}

void one_round(Bench& bench, std::vector<Running>& cells, bool first) {
  bench.meter->copy();
  bench.meter->launches();
  const double flop_s = bench.meter->matmul();
  const bool none =
      std::all_of(cells.begin(), cells.end(), [](const Running& r) { return r.data == nullptr; });
  if (none) bench.meter->read();  // a ceiling all the same
  for (Running& r : cells) {
    if (r.data == nullptr || (!first && r.us.size() == 1 && r.us[0] > kLongRun * 1e6)) continue;
    const double read = bench.meter->read();
    const double seconds = time_layer(bench, *r.data);
    const double least = std::max(r.data->layer_bytes() / read, r.data->layer_flops() / flop_s);
    r.us.push_back(seconds * 1e6);
    r.fractions.push_back(least / seconds);
  }
}

// The reasons of cells that were all refused, each once.
Status check_any_served(const std::vector<Running>& cells) {
  std::vector<std::string> reasons;
  for (const Running& r : cells) {
    if (r.cell.refused.empty()) return {};
    if (std::find(reasons.begin(), reasons.end(), r.cell.refused) == reasons.end())
      reasons.push_back(r.cell.refused);
  }
  if (reasons.empty()) return {};
  return bad_input(fmt::format(
      "nothing here can be measured: {}. Give another --shape, --page-size, --kv-dtype or --backend "
      "(`quire backends` shows what each row takes)",
      comma_list(reasons)));
}

AttentionCell finish(Running& r) {
  if (r.us.empty()) return r.cell;
  r.cell.us = median(r.us);
  r.cell.us_min = *std::min_element(r.us.begin(), r.us.end());
  r.cell.us_max = *std::max_element(r.us.begin(), r.us.end());
  r.cell.bytes_s = r.data->layer_bytes() / (r.cell.us * 1e-6);
  r.cell.flop_s = r.data->layer_flops() / (r.cell.us * 1e-6);
  r.cell.fraction = median(r.fractions);
  return r.cell;
}

}  // namespace

Result<AttentionReport> bench_attention(platform::Device& device, std::span<const Backend> table,
                                        const std::vector<CellSpec>& specs, const Options& options) {
  Bench bench{device, table, options, device.make_stream(), nullptr};
  QUIRE_TRY(meter, CeilingMeter::make(device, *bench.stream, options));
  bench.meter = std::move(meter);
  const bool cpu = device.info().kind == platform::Kind::cpu;
  if (cpu) bench.threads = platform::cpu::as_cpu(*bench.stream).threads();
  std::vector<Running> cells;
  for (const CellSpec& spec : specs) {
    QUIRE_TRY(running, start(bench, spec));
    if (running.data != nullptr) running.data->enqueue();  // warm: page tables, caches of the plan
    bench.stream->synchronize();
    if (running.data != nullptr && !cpu) running.data->record();
    cells.push_back(std::move(running));
  }
  QUIRE_TRY_STATUS(check_any_served(cells));
  for (int round = 0; round < options.rounds; ++round) one_round(bench, cells, round == 0);
  AttentionReport report;
  for (Running& r : cells) report.cells.push_back(finish(r));
  report.ceilings = bench.meter->summary();
  return report;
}

}  // namespace quire::attention::bench
