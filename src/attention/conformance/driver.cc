#include "attention/conformance/driver.h"

#include <fmt/format.h>

#include "attention/conformance/judge.h"
#include "attention/other_names.h"
#include "base/clock.h"
#include "base/text.h"

namespace quire::conformance {
namespace {

using attention::Backend;
using attention::Box;
using attention::Problem;

bool box_is_here(const Box& box, const platform::DeviceInfo& device) {
  return (box.platforms == 0 || (box.platforms & attention::bit(device.kind))) &&
         device.arch >= box.arch_min && device.arch <= box.arch_max;
}

class RowRun {
 public:
  RowRun(const Backend& row, const VerifyOptions& options, const Fault* fault, Machine& machine,
         double seconds)
      : row_(row),
        options_(options),
        fault_(fault),
        machine_(machine),
        judge_(row, fault, machine),
        seconds_(seconds) {}

  Result<RowReport> run() {
    report_.name = row_.name;
    start_ = Clock::now();
    for (int box = 0; box < static_cast<int>(row_.caps.boxes.size()) && !enough(); ++box)
      QUIRE_TRY_STATUS(run_box(box));
    if (fault_ == nullptr && options_.share == 1) check_refusals();
    report_.cases = report_.passed + report_.failed + report_.skipped;
    report_.seconds = seconds_since(start_);
    return report_;
  }

 private:
  // A planted fault is caught: the rest would say the same.
  bool enough() const { return fault_ != nullptr && report_.failed >= 3; }

  void count(const std::string& name, const Finding& finding) {
    if (finding.ok()) {
      ++report_.passed;
    } else {
      ++report_.failed;
      std::string text = finding.broken.empty()
                             ? fmt::format("{} {:.3g} over the gate {:.3g}", finding.worst.what,
                                           finding.worst.error, finding.worst.gate)
                             : finding.broken;
      if (static_cast<int>(report_.failures.size()) < kMostFailures)
        report_.failures.push_back(fmt::format("{}: {}", name, text));
    }
    const Error worst_so_far{report_.worst.error, report_.worst.gate, ""};
    if (finding.worst.ratio() > worst_so_far.ratio())
      report_.worst = {fmt::format("{}: {}", name, finding.worst.what), finding.worst.error,
                       finding.worst.gate};
  }

  // Cases go round the shares, so that each has some of every box.
  bool is_mine(int number) const { return number % options_.shares == options_.share - 1; }

  // Whether it passed.
  Result<bool> run_case(const Case& c, int number) {
    const std::string name = name_of(c);
    if (auto reason = supports(row_, c.problem)) {
      count(name, {fmt::format("refused although a box holds it: {}", reason->text), {}});
      return false;
    }
    const Logical logical = make_logical(c);
    QUIRE_TRY_STATUS(judge_.check_room(logical));
    Finding finding = judge_.accuracy(logical);
    const bool merge_turn = fault_ != nullptr || number % 4 == 0;
    if (finding.ok()) finding.join(judge_.invariance(logical));
    if (finding.ok() && merge_turn && judge_.can_merge(c.problem)) finding.join(judge_.merged_parts(logical));
    count(name, finding);
    return finding.ok();
  }

  Status run_box(int box) {
    const platform::DeviceInfo& device = machine_.places[0].device->info();
    const int extra = options_.seconds > 0 ? 2000 : kExtraCases;
    Sweep sweep = make_sweep(row_, box, options_.seed, extra);
    const int covering = static_cast<int>(sweep.cases.size()) - extra;
    if (!box_is_here(row_.caps.boxes[static_cast<std::size_t>(box)], device)) {
      for (int i = 0; i < covering; ++i) report_.skipped += is_mine(i) ? 1 : 0;
      return {};
    }
    std::vector<std::vector<int>> proven;  // passing cases per axis and value
    for (const Axis& axis : sweep.axes) proven.emplace_back(axis.values.size());
    const double share = seconds_ * (box + 1) / static_cast<double>(row_.caps.boxes.size());
    for (int i = 0; i < static_cast<int>(sweep.cases.size()) && !enough(); ++i) {
      if (!is_mine(i)) continue;
      if (i >= covering && options_.seconds > 0 && seconds_since(start_) > share) break;
      Case& c = sweep.cases[static_cast<std::size_t>(i)];
      c.problem.platform = device.kind;
      c.problem.arch = device.arch;
      if (fault_ != nullptr && !can_show(*fault_, c.problem)) {
        ++report_.skipped;
        continue;
      }
      QUIRE_TRY(passed, run_case(c, i));
      if (!passed) continue;
      for (std::size_t a = 0; a < proven.size(); ++a) ++proven[a][c.values[a]];
    }
    if (fault_ == nullptr && options_.shares == 1) check_claims(box, sweep, proven);
    return {};
  }

  // A claim without a passing case is a failure.
  void check_claims(int box, const Sweep& sweep, const std::vector<std::vector<int>>& proven) {
    for (std::size_t a = 0; a < proven.size(); ++a)
      for (std::size_t v = 0; v < proven[a].size(); ++v)
        if (proven[a][v] == 0)
          count(fmt::format("box {} claims {} {}", box, sweep.axes[a].name, sweep.axes[a].values[v]),
                {"no passing case shows it", {}});
  }

  // What lies outside all boxes is refused with two facts and the nearest legal change.
  void check_refusals() {
    if (row_.caps.boxes.empty()) return;
    const Problem legal = make_sweep(row_, 0, options_.seed, 0).cases[0].problem;
    const auto refuse = [&](std::string_view what, auto change) {
      Problem problem = legal;
      problem.platform = machine_.places[0].device->info().kind;
      problem.arch = machine_.places[0].device->info().arch;
      problem.source = attention::KvSource::paged;
      problem.page_size = 16;
      change(problem);
      const auto reason = supports(row_, problem);
      Finding finding;
      if (!reason)
        finding.broken = "is accepted";
      else if (reason->text.empty() || reason->fix.empty() || to_string(reason->facts[0]) == "unknown" ||
               to_string(reason->facts[1]) == "unknown")
        finding.broken = "the refusal lacks its facts or its fix";
      count(fmt::format("refusal of {}", what), finding);
    };
    refuse("page size 0", [](Problem& p) { p.page_size = 0; });
    refuse("page size 257", [](Problem& p) { p.page_size = 257; });
    refuse("head dim 0", [](Problem& p) { p.qk_dim = 0; });
    refuse("5 query heads over 2", [](Problem& p) { p.q_heads = 5, p.kv_heads = 2; });
    refuse("queries of i32", [](Problem& p) { p.q_type = DType::i32; });
    refuse("KV of i64", [](Problem& p) { p.kv.k_type = p.kv.v_type = DType::i64; });
    refuse("block scales", [](Problem& p) { p.kv.scale = KvScaleKind::block; });
    refuse("2 tokens per entry", [](Problem& p) { p.kv.tokens_per_entry = 2; });
  }

  const Backend& row_;
  const VerifyOptions& options_;
  const Fault* fault_;
  Machine& machine_;
  Judge judge_;
  double seconds_;
  RowReport report_;
  Clock::time_point start_;
};

}  // namespace

Result<VerifyReport> verify(std::span<const Backend> table, const VerifyOptions& options) {
  const Fault* fault = options.fault.empty() ? nullptr : find_fault(options.fault);
  if (!options.fault.empty() && fault == nullptr)
    return bad_input(fmt::format("there is no fault '{}'; there are\n{}", options.fault, fault_list()));
  if (options.shares < 1 || options.share < 1 || options.share > options.shares)
    return bad_input(
        fmt::format("share {} of {} is none: give N of M with 1 <= N <= M", options.share, options.shares));
  if (fault != nullptr && options.shares > 1)
    return bad_input(fmt::format("a share of the cases need not show the fault {}: plant it without --share",
                                 fault->name));
  std::vector<const Backend*> rows;
  for (const Backend& row : table)
    if (options.backend.empty() || row.name == options.backend) rows.push_back(&row);
  if (rows.empty())
    return bad_input(fmt::format("there is no attention backend '{}'; this build has {}{}", options.backend,
                                 table.empty() ? "none for this platform" : comma_list(table, &Backend::name),
                                 attention::name_elsewhere(options.backend)));
  QUIRE_TRY(machine, open_machine(options.device));
  VerifyReport report;
  report.seed = options.seed;
  report.passed = true;
  int judged = 0;
  for (const Backend* row : rows) {
    const double seconds = static_cast<double>(options.seconds) / static_cast<double>(rows.size());
    QUIRE_TRY(done, RowRun(*row, options, fault, machine, seconds).run());
    report.rows.push_back(std::move(done));
    const RowReport& last = report.rows.back();
    if (options.shares > 1 && last.cases == 0)
      return bad_input(fmt::format("share {} of {} has no case of {}: give fewer shares", options.share,
                                   options.shares, row->name));
    const bool nothing_to_show = fault != nullptr && last.passed + last.failed == 0;
    judged += nothing_to_show ? 0 : 1;
    report.passed = report.passed && last.failed == 0 && (last.passed > 0 || nothing_to_show);
  }
  if (judged == 0 && fault != nullptr)
    return bad_input(fmt::format("no call that these rows take can show the fault {}: {}", fault->name,
                                 fault->description));
  return report;
}

}  // namespace quire::conformance
