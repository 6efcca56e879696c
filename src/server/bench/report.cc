#include "server/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/quantile.h"

namespace quire::server::bench {
namespace {

std::int64_t tokens_of(const Outcome& outcome) {
  return outcome.usage.has_value() ? outcome.usage->output_tokens : outcome.texts;
}

// By what errors are counted: one short line.
std::string kind_of(const Outcome& outcome) {
  std::string text = outcome.error.substr(0, 160);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return outcome.status != 0 && outcome.status != 200 ? fmt::format("status {}: {}", outcome.status, text)
                                                      : text;
}

// Sorts `values`.
Spread spread_of(std::vector<double>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0.0;
  for (const double value : values) sum += value;
  return {.mean = sum / static_cast<double>(values.size()),
          .p50 = quantile(values, 0.5),
          .p90 = quantile(values, 0.9),
          .p95 = quantile(values, 0.95),
          .p99 = quantile(values, 0.99),
          .max = values.back()};
}

bool is_good(const Outcome& outcome, const Limits& limits) {
  if (!outcome.ok() || outcome.texts == 0) return false;
  if (limits.ttft_p99_s > 0.0 && outcome.first_s - outcome.begin_s > limits.ttft_p99_s) return false;
  if (limits.itl_p99_s == 0.0 || outcome.gaps_s.empty()) return true;
  std::vector<double> gaps(outcome.gaps_s.begin(), outcome.gaps_s.end());
  return spread_of(gaps).p99 <= limits.itl_p99_s;
}

}  // namespace

Report report_of(std::span<const Outcome> outcomes, const Limits& limits) {
  Report report;
  auto& [ttft, itl, tpot, e2e] = report.times;
  double first = std::numeric_limits<double>::max();
  double last = 0.0;
  std::int64_t good_tokens = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.begin_s < 0.0) continue;  // the load ended before it began
    ++report.requests;
    first = std::min(first, outcome.begin_s);
    last = std::max(last, outcome.end_s);
    if (!outcome.ok()) {
      ++report.failed;
      ++report.errors[kind_of(outcome)];
      continue;
    }
    ++report.completed;
    const std::int64_t tokens = tokens_of(outcome);
    report.output_tokens += tokens;
    if (outcome.usage.has_value()) {
      report.prompt_tokens += outcome.usage->prompt_tokens;
      report.cached_tokens += outcome.usage->cached_tokens;
    } else {
      ++report.uncounted;
    }
    e2e.push_back(outcome.end_s - outcome.begin_s);
    if (outcome.texts > 0) ttft.push_back(outcome.first_s - outcome.begin_s);
    if (tokens > 1 && outcome.texts > 1)
      tpot.push_back((outcome.last_s - outcome.first_s) / static_cast<double>(tokens - 1));
    itl.insert(itl.end(), outcome.gaps_s.begin(), outcome.gaps_s.end());
    if (!is_good(outcome, limits)) continue;
    ++report.goodput.requests;
    good_tokens += tokens;
  }
  if (report.requests == 0) return report;
  report.seconds = std::max(1e-9, last - first);
  report.requests_s = static_cast<double>(report.completed) / report.seconds;
  report.tokens_s = static_cast<double>(report.output_tokens) / report.seconds;
  report.total_tokens_s = static_cast<double>(report.output_tokens + report.prompt_tokens) / report.seconds;
  report.ttft_s = spread_of(ttft);
  report.itl_s = spread_of(itl);
  report.tpot_s = spread_of(tpot);
  report.e2e_s = spread_of(e2e);
  report.goodput.share = static_cast<double>(report.goodput.requests) / static_cast<double>(report.requests);
  report.goodput.requests_s = static_cast<double>(report.goodput.requests) / report.seconds;
  report.goodput.tokens_s = static_cast<double>(good_tokens) / report.seconds;
  report.goodput.met = report.failed == 0 &&
                       (limits.ttft_p99_s == 0.0 || report.ttft_s.p99 <= limits.ttft_p99_s) &&
                       (limits.itl_p99_s == 0.0 || report.itl_s.p99 <= limits.itl_p99_s);
  return report;
}

}  // namespace quire::server::bench
