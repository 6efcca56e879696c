#include "record/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <variant>

#include "attention/other_names.h"
#include "base/nearest.h"
#include "record/replay/find_keys.h"
#include "record/replay/gates.h"
#include "tensor/values.h"

namespace quire::record {
namespace {

constexpr std::string_view kRecorded = "recorded";
constexpr std::string_view kReference = "reference";
// Pages in memory, against the file: a page may be stored with a single slot.
constexpr std::int64_t kLeastCacheBytes = std::int64_t{256} << 20;
constexpr std::int64_t kCachePerFileByte = 16;

Results recorded_results(const CallFrame& frame, const attention::Problem& problem) {
  Results results;
  const std::int64_t values = std::int64_t{frame.total_q} * problem.q_heads * problem.v_dim;
  results.out.resize(static_cast<std::size_t>(values));
  for (std::int64_t i = 0; i < values; ++i)
    results.out[static_cast<std::size_t>(i)] = load_value(problem.q_type, frame.out.data(), i);
  results.lse = frame.lse;
  return results;
}

// "0-3,7", as NumberSet reads it.
std::string ranges(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::int64_t first = *it;
    std::int64_t last = first;
    for (++it; it != numbers.end() && *it == last + 1; ++it) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

class Replay {
 public:
  Replay(FileReader& reader, const ReplayOptions& options)
      : reader_(reader),
        options_(options),
        cache_(std::max(kLeastCacheBytes,
                        static_cast<std::int64_t>(reader.header().bytes) * kCachePerFileByte)) {}

  Result<ReplayReport> run();

 private:
  struct Side {
    std::string name;
    Runner* runner = nullptr;  // null: recorded
  };
  Status choose_sides();
  Result<Side> make_side(const std::string& name, const conformance::Fault* fault);
  Result<Runner*> runner_of(const std::string& name, const conformance::Fault* fault);
  std::string refusal(const Side& side, std::uint32_t call) const;
  Result<Results> results_of(const Side& side, const CallFrame& frame);
  bool must_be_equal(const RecordedCall& call) const;
  Status take_call(const CallFrame& frame);
  std::optional<Difference> compare(const CallFrame& frame, const Results& got, const Results& expected,
                                    const Gates& gates);
  bool compare_row(const CallFrame& frame, std::int32_t row, std::int32_t head, const Results& got,
                   const Results& expected, const Gates& gates, Difference& difference);
  void name_row(const CallFrame& frame, Difference& difference) const;
  Status locate_keys(const CallFrame& frame, const Gates& gates, std::int32_t row, Difference& difference);

  FileReader& reader_;
  const ReplayOptions& options_;
  Cache cache_;
  std::vector<std::pair<std::string, std::unique_ptr<Runner>>> runners_;
  const conformance::Fault* fault_ = nullptr;
  Side backend_, against_;
  StepFrame step_;
  ReplayReport report_;
  std::string refusals_;
  std::set<std::int64_t> held_layers_, held_steps_;  // of the record's calls
  std::int64_t chosen_ = 0;                          // calls of the chosen layers and steps
};

Result<Runner*> Replay::runner_of(const std::string& name, const conformance::Fault* fault) {
  const std::string key = fault == nullptr ? name : name + " with a fault";
  for (const auto& [known, runner] : runners_)
    if (known == key) return runner.get();
  std::vector<std::string_view> names = {kRecorded};
  for (const TableRow& row : options_.table) {
    if (std::find(names.begin(), names.end(), row.backend.name) == names.end())
      names.push_back(row.backend.name);
    if (row.backend.name != name) continue;
    QUIRE_TRY(runner, Runner::create(row, reader_.engine(), name == kReference, fault));
    runners_.emplace_back(key, std::move(runner));
    return runners_.back().second.get();
  }
  return bad_input(fmt::format("there is no attention backend '{}' in this build{}{}", name,
                               did_you_mean(name, names), attention::name_elsewhere(name)));
}

Result<Replay::Side> Replay::make_side(const std::string& name, const conformance::Fault* fault) {
  if (name == kRecorded) return Side{name, nullptr};
  QUIRE_TRY(runner, runner_of(name, fault));
  return Side{name, runner};
}

Status Replay::choose_sides() {
  const std::string backend = options_.backend.empty() ? std::string(kRecorded) : options_.backend;
  std::string against = options_.against;
  if (against.empty()) against = backend == kReference ? kRecorded : kReference;
  if (!options_.fault.empty()) {
    fault_ = conformance::find_fault(options_.fault);
    if (fault_ == nullptr)
      return bad_input(
          fmt::format("there is no fault '{}'; there are\n{}", options_.fault, conformance::fault_list()));
    if (backend == kRecorded) return bad_input("--fault is planted in a row: name it with --backend NAME");
  }
  if (backend == against && fault_ == nullptr)
    return bad_input(
        fmt::format("{} against itself cannot differ: use --against with another name", backend));
  QUIRE_TRY(first, make_side(backend, fault_));
  QUIRE_TRY(second, make_side(against, nullptr));
  const auto calls = static_cast<std::uint32_t>(reader_.engine().calls.size());
  bool shows = fault_ == nullptr;
  for (std::uint32_t c = 0; c < calls && !shows; ++c) shows = first.runner->shows_fault(c);
  if (!shows)
    return bad_input(
        fmt::format("no call of this record can show the fault {}: {}", fault_->name, fault_->description));
  backend_ = first;
  against_ = second;
  report_.backend = backend;
  report_.against = against;
  return {};
}

std::string Replay::refusal(const Side& side, std::uint32_t call) const {
  return side.runner == nullptr ? "" : side.runner->refusal(call, false);
}

Result<Results> Replay::results_of(const Side& side, const CallFrame& frame) {
  if (side.runner == nullptr) return recorded_results(frame, reader_.engine().calls[frame.call].problem);
  return side.runner->run(frame, cache_, nullptr);
}

// The row that ran then and the same row now, on the same kind of machine: a level that promises the same
// bits from run to run is held to it.
bool Replay::must_be_equal(const RecordedCall& call) const {
  const Side& row = backend_.runner != nullptr ? backend_ : against_;
  if (backend_.runner != nullptr && against_.runner != nullptr) return false;
  return row.runner != nullptr && row.name == call.backend && row.name != kReference &&
         call.level >= attention::Determinism::run_to_run &&
         row.runner->device().kind == call.problem.platform &&
         row.runner->device().arch == call.problem.arch && row.runner->threads() == reader_.engine().threads;
}

bool Replay::compare_row(const CallFrame& frame, std::int32_t row, std::int32_t head, const Results& got,
                         const Results& expected, const Gates& gates, Difference& d) {
  const RecordedCall& call = reader_.engine().calls[frame.call];
  const attention::Problem& p = call.problem;
  const std::size_t base =
      (static_cast<std::size_t>(row) * static_cast<std::size_t>(p.q_heads) + static_cast<std::size_t>(head));
  const RowError error = row_error(got.out, expected.out, base * static_cast<std::size_t>(p.v_dim), p.v_dim);
  const std::int32_t sequence = gates.sequence_of(row);
  d.gate = must_be_equal(call) ? 0 : gates.of(sequence, row, head, error.largest);
  if (d.gate > 0 && against_.name != kReference && backend_.name != kReference) d.gate *= 2;
  d.error = error.error;
  d.dim = error.dim;
  d.got = error.got;
  d.expected = error.expected;
  if (!(error.error <= d.gate)) return true;
  if (d.gate > 0) report_.worst_ratio = std::max(report_.worst_ratio, error.error / d.gate);
  if (got.lse.empty() || expected.lse.empty() || d.gate == 0) return false;
  const double a = got.lse[base];
  const double b = expected.lse[base];
  if (a == b || (std::isnan(a) && std::isnan(b))) return false;
  d.of_lse = true;
  d.error = std::fabs(a - b);
  d.gate = 2 * (1e-4 + std::ldexp(std::fabs(b), -16));
  d.got = a;
  d.expected = b;
  return !(d.error <= d.gate);
}

// Rows and heads in order; those of padding and of no sequence mean nothing.
std::optional<Difference> Replay::compare(const CallFrame& frame, const Results& got, const Results& expected,
                                          const Gates& gates) {
  const RecordedCall& call = reader_.engine().calls[frame.call];
  for (std::int32_t row = 0; row < frame.total_q; ++row) {
    if (gates.sequence_of(row) < 0 || frame.first_token + row >= step_.total_q) continue;
    for (std::int32_t head = 0; head < call.problem.q_heads; ++head) {
      Difference difference;
      if (!compare_row(frame, row, head, got, expected, gates, difference)) continue;
      difference.step = frame.step;
      difference.call = call.name;
      difference.row_name = backend_.runner != nullptr ? backend_.name : call.backend;
      difference.layer = frame.layer;
      difference.row = row;
      difference.head = head;
      return difference;
    }
  }
  return std::nullopt;
}

void Replay::name_row(const CallFrame& frame, Difference& difference) const {
  difference.row += frame.first_token;
  for (const RecordedRow& row : step_.rows) {
    const std::int32_t at = difference.row - row.first_row;
    if (at < 0 || at >= row.query_count) continue;
    difference.sequence = row.sequence;
    difference.position = row.query_begin + at;
  }
}

Status Replay::locate_keys(const CallFrame& frame, const Gates& gates, std::int32_t row,
                           Difference& difference) {
  const RecordedCall& call = reader_.engine().calls[frame.call];
  Runner* suspect = backend_.runner;
  if (suspect == nullptr) {
    auto runner = runner_of(call.backend, nullptr);
    if (!runner.ok()) {
      difference.keys_note = fmt::format("{} ran it and is not in this build", call.backend);
      return {};
    }
    suspect = *runner;
  }
  QUIRE_TRY(oracle, runner_of(std::string(kReference), nullptr));
  for (Runner* runner : {suspect, oracle}) {
    const std::string reason = runner->refusal(frame.call, true);
    if (reason.empty()) continue;
    difference.keys_note =
        fmt::format("the keys were not searched, {} runs no parts: {}", runner->row().name, reason);
    return {};
  }
  const KeySearch search{frame, call.problem, cache_, gates, *suspect, *oracle, row, difference.head};
  QUIRE_TRY(found, find_keys(search));
  difference.key_begin = found.begin;
  difference.key_end = found.end;
  difference.keys_note = found.note;
  return {};
}

Status Replay::take_call(const CallFrame& frame) {
  const RecordedCall& call = reader_.engine().calls[frame.call];
  QUIRE_TRY_STATUS(cache_.apply(frame, call));
  ++report_.calls;
  held_layers_.insert(frame.layer);
  held_steps_.insert(static_cast<std::int64_t>(frame.step));
  if (!options_.layers.contains(frame.layer) ||
      !options_.steps.contains(static_cast<std::int64_t>(frame.step)))
    return {};
  ++chosen_;
  for (const Side* side : {&backend_, &against_}) {
    const std::string reason = refusal(*side, frame.call);
    if (reason.empty()) continue;
    if (refusals_.find(call.name) == std::string::npos)
      refusals_ += fmt::format("\n  {} cannot run {}: {}", side->name, call.name, reason);
    ++report_.skipped;
    return {};
  }
  QUIRE_TRY(got, results_of(backend_, frame));
  QUIRE_TRY(expected, results_of(against_, frame));
  ++report_.compared;
  const bool paged = call.problem.source == attention::KvSource::paged;
  const Gates gates(frame, call, paged ? &cache_.of(frame, call) : nullptr);
  std::optional<Difference> difference = compare(frame, got, expected, gates);
  if (!difference) return {};
  ++report_.differing;
  if (report_.first) return {};
  const std::int32_t row = difference->row;
  name_row(frame, *difference);
  QUIRE_TRY_STATUS(locate_keys(frame, gates, row, *difference));
  report_.first = std::move(difference);
  return {};
}

Result<ReplayReport> Replay::run() {
  QUIRE_TRY_STATUS(choose_sides());
  while (true) {
    QUIRE_TRY(frame, reader_.next());
    if (!frame) break;
    if (auto* step = std::get_if<StepFrame>(&*frame)) {
      step_ = std::move(*step);
      ++report_.steps;
    } else if (const auto* call = std::get_if<CallFrame>(&*frame)) {
      QUIRE_TRY_STATUS(take_call(*call));
    }
  }
  if (report_.steps == 0) return bad_input("the record holds no steps: see --record-steps / --record-limit");
  if (report_.calls == 0)
    return bad_input("the record holds plans only, no attention calls: record with --record-layers all");
  if (chosen_ == 0)
    return bad_input(fmt::format("none of the record's {} calls is chosen: it has --layer {} and --step {}",
                                 report_.calls, ranges(held_layers_), ranges(held_steps_)));
  if (report_.compared == 0)
    return bad_input(
        fmt::format("none of the {} chosen calls could be compared: name another row{}", chosen_, refusals_));
  return report_;
}

}  // namespace

Result<ReplayReport> replay(FileReader& reader, const ReplayOptions& options) {
  return Replay(reader, options).run();
}

}  // namespace quire::record
