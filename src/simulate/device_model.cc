#include "simulate/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/text.h"

namespace quire::simulate {
namespace {

constexpr std::size_t kSlopes = 3;
using Slopes = std::array<double, kSlopes>;

Slopes slopes_of(const StepLoad& load) { return {load.logits, load.keys, load.pairs}; }

// Gaussian elimination with pivots for the normal equations of the chosen slopes; nothing when they are
// dependent.
std::optional<Slopes> solve(const std::array<Slopes, kSlopes>& normal, const Slopes& right, unsigned chosen) {
  std::array<std::size_t, kSlopes> index{};
  std::size_t n = 0;
  for (std::size_t c = 0; c < kSlopes; ++c)
    if ((chosen >> c & 1u) != 0) index[n++] = c;
  std::array<std::array<double, kSlopes + 1>, kSlopes> m{};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) m[i][j] = normal[index[i]][index[j]];
    m[i][n] = right[index[i]];
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::fabs(m[r][i]) > std::fabs(m[pivot][i])) pivot = r;
    std::swap(m[i], m[pivot]);
    if (std::fabs(m[i][i]) < 1e-9) return std::nullopt;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (std::size_t c = i; c <= n; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  Slopes result{};
  for (std::size_t i = 0; i < n; ++i) result[index[i]] = m[i][n] / m[i][i];
  return result;
}

// A cell over its time, so that squares are of relative errors, and less the mean of its number of rows.
struct Deviation {
  Slopes x{};
  double y = 0.0;
};

// Weighted means of the cells with equally many rows: the curve's point there is y less the slopes' share.
struct Mean {
  Slopes x{};
  double y = 0.0;
  double weight = 0.0;
};

std::map<double, Mean> means_of(std::span<const Measured> cells) {
  std::map<double, Mean> means;
  for (const Measured& cell : cells) {
    Mean& mean = means[cell.load.rows()];
    const double weight = 1.0 / (cell.seconds * cell.seconds);
    const Slopes x = slopes_of(cell.load);
    for (std::size_t c = 0; c < kSlopes; ++c) mean.x[c] += weight * x[c];
    mean.y += weight * cell.seconds;
    mean.weight += weight;
  }
  for (auto& [rows, mean] : means) {
    for (double& x : mean.x) x /= mean.weight;
    mean.y /= mean.weight;
  }
  return means;
}

double squares(std::span<const Deviation> deviations, const Slopes& slopes) {
  double sum = 0.0;
  for (const Deviation& d : deviations) {
    double error = d.y;
    for (std::size_t c = 0; c < kSlopes; ++c) error -= d.x[c] * slopes[c];
    sum += error * error;
  }
  return sum;
}

// Of the sets of slopes in `may` that are all positive, the best; the others are 0.
Slopes least_squares(std::span<const Measured> cells, const std::map<double, Mean>& means, unsigned may) {
  std::vector<Deviation> deviations;
  Slopes scale{};
  for (const Measured& cell : cells) {
    const Mean& mean = means.at(cell.load.rows());
    Slopes x = slopes_of(cell.load);
    for (std::size_t c = 0; c < kSlopes; ++c) {
      x[c] = (x[c] - mean.x[c]) / cell.seconds;
      scale[c] += x[c] * x[c];
    }
    deviations.push_back({x, (cell.seconds - mean.y) / cell.seconds});
  }
  for (double& s : scale) s = s > 0 ? std::sqrt(s) : 1.0;
  std::array<Slopes, kSlopes> normal{};
  Slopes right{};
  for (Deviation& d : deviations) {
    for (std::size_t c = 0; c < kSlopes; ++c) d.x[c] /= scale[c];
    for (std::size_t a = 0; a < kSlopes; ++a) {
      right[a] += d.x[a] * d.y;
      for (std::size_t b = 0; b < kSlopes; ++b) normal[a][b] += d.x[a] * d.x[b];
    }
  }
  Slopes best{};
  double least = squares(deviations, best);
  for (unsigned chosen = 1; chosen < 1u << kSlopes; ++chosen) {
    if ((chosen & ~may) != 0) continue;
    const std::optional<Slopes> slopes = solve(normal, right, chosen);
    if (!slopes || std::any_of(slopes->begin(), slopes->end(), [](double s) { return s < 0; })) continue;
    if (const double sum = squares(deviations, *slopes); sum < least) {
      least = sum;
      best = *slopes;
    }
  }
  for (std::size_t c = 0; c < kSlopes; ++c) best[c] /= scale[c];
  return best;
}

// Whether a part of the load differs between cells that are alike in their rows of each kind.
bool shows(std::span<const Measured> cells, double StepLoad::*part) {
  std::map<std::pair<double, double>, double> seen;
  return std::any_of(cells.begin(), cells.end(), [&](const Measured& cell) {
    const StepLoad& load = cell.load;
    const auto at = seen.try_emplace({load.decode_rows, load.prompt_tokens}, load.*part).first;
    return at->second != load.*part;
  });
}

// What is missing of the cells, as the command that gives it.
std::string note_of(bool chunks, bool batches, bool keys, bool pairs) {
  if (!chunks)
    return "no cell has a prompt chunk: prompt tokens are taken to cost as much as decode rows; run "
           "`quire bench step --chunk 16,64,256`";
  if (!batches) return "no cell has decode rows: they are taken to cost as much as prompt tokens";
  if (!keys)
    return "every batch was measured at one context: keys are taken to cost nothing more; run `quire bench "
           "step` with two contexts";
  if (!pairs)
    return "no chunk was measured behind two contexts: a pair is taken to cost as much as a key; run `quire "
           "bench step` with a context of the largest chunk or more";
  return "";
}

}  // namespace

StepLoad load_of(const scheduler::StepPlan& plan, std::span<const kv::GroupRule> rules) {
  StepLoad load;
  for (const scheduler::PlanRow& row : plan.rows) {
    double keys = 0.0;
    for (const kv::GroupRule& rule : rules) {
      // The middle query of the row stands for all of them: exact without a window.
      const double middle = row.query_begin + (row.query_count + 1) / 2.0;
      keys += middle - static_cast<double>(kv::visible_begin(rule, static_cast<std::int64_t>(middle) - 1));
    }
    keys *= row.query_count / static_cast<double>(rules.size());
    if (row.kind == scheduler::RowKind::decode) {
      load.decode_rows += 1.0;
      load.keys += keys;
    } else {
      load.prompt_tokens += row.query_count;
      load.pairs += keys;
    }
  }
  load.logits = plan.total_logits;
  return load;
}

double DeviceModel::rows_seconds(double count) const {
  QUIRE_CHECK(!rows.empty(), "no point for {} rows", count);
  if (rows.size() == 1) return rows[0].seconds * std::max(1.0, count / rows[0].rows);
  const auto above = std::find_if(rows.begin() + 1, rows.end() - 1,
                                  [count](const Point& point) { return point.rows >= count; });
  const Point& a = *(above - 1);
  const Point& b = *above;
  return std::max(0.0, a.seconds + (b.seconds - a.seconds) * (count - a.rows) / (b.rows - a.rows));
}

std::string to_string(const DeviceModel& model) {
  const std::string points = comma_list(model.rows, [](const DeviceModel::Point& point) {
    return fmt::format("{:g}: {:.4g}", point.rows, point.seconds * 1e3);
  });
  return fmt::format("rows and ms {} + {:.4g} us a row of logits + {:.4g} ns a key + {:.4g} ns a pair",
                     points, model.logit_s * 1e6, model.key_s * 1e9, model.pair_s * 1e9);
}

Fit fit(std::span<const Measured> cells) {
  QUIRE_CHECK(!cells.empty(), "no cell");
  for (const Measured& cell : cells) QUIRE_CHECK(cell.seconds > 0, "{} s", cell.seconds);
  const std::map<double, Mean> means = means_of(cells);
  const bool keys = shows(cells, &StepLoad::keys);
  const bool pairs = shows(cells, &StepLoad::pairs);
  Slopes slopes = least_squares(cells, means, 1u | (keys ? 2u : 0u) | (pairs ? 4u : 0u));
  const bool chunks = std::any_of(cells.begin(), cells.end(),
                                  [](const Measured& cell) { return cell.load.prompt_tokens > 0; });
  const bool batches =
      std::any_of(cells.begin(), cells.end(), [](const Measured& cell) { return cell.load.decode_rows > 0; });
  if (!pairs) slopes[2] = slopes[1];
  if (!batches) slopes[1] = slopes[2];
  Fit result;
  result.model = {{}, slopes[0], slopes[1], slopes[2]};
  for (const auto& [rows, mean] : means) {
    double seconds = mean.y;
    for (std::size_t c = 0; c < kSlopes; ++c) seconds -= slopes[c] * mean.x[c];
    result.model.rows.push_back({rows, std::max(0.0, seconds)});
  }
  result.note = note_of(chunks, batches, keys, pairs);
  result.cells = cells.size();
  for (const Measured& cell : cells) {
    const double error = std::fabs(result.model.seconds(cell.load) / cell.seconds - 1.0);
    result.worst_error = std::max(result.worst_error, error);
    result.mean_error += error / static_cast<double>(cells.size());
  }
  return result;
}

Result<Fit> fit_bench_step(const std::string& text, const std::string& name) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto broken = [&](std::string_view what) {
    return bad_input(fmt::format("{}: {}; make it with `quire bench step MODEL --json`", name, what));
  };
  if (!json.is_object() || !json.contains("steps") || !json["steps"].is_array() || json["steps"].empty())
    return broken("not the output of `bench step --json`: it has no \"steps\"");
  std::vector<Measured> cells;
  for (const nlohmann::json& step : json["steps"]) {
    for (const char* key : {"batch", "context", "ms"})
      if (!step.is_object() || !step.contains(key) || !step[key].is_number())
        return broken(fmt::format("a step has no number \"{}\"", key));
    const auto batch = step["batch"].get<double>();
    const auto context = step["context"].get<double>();
    const double chunk =
        step.contains("chunk") && step["chunk"].is_number() ? step["chunk"].get<double>() : 0.0;
    const auto ms = step["ms"].get<double>();
    if (!(batch >= 0 && context >= 0 && chunk >= 0 && ms > 0 && ms < 1e9))
      return broken("a step has a negative size or no time");
    if (batch + chunk < 1) return broken("a step has neither \"batch\" nor \"chunk\"");
    const double logits = batch + (chunk > 0 ? 1 : 0);
    cells.push_back(
        {{batch, batch * context, chunk, chunk * context + chunk * (chunk + 1) / 2, logits}, ms * 1e-3});
  }
  return fit(cells);
}

}  // namespace quire::simulate
