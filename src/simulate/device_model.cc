#include "simulate/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"

namespace quire::simulate {
namespace {

constexpr std::size_t kCosts = 5;
using Row = std::array<double, kCosts>;

Row row_of(const StepLoad& load) {
  return {1.0, load.decode_rows, load.keys, load.prompt_tokens, load.pairs};
}

// Gaussian elimination with pivots for the normal equations of the chosen costs; nothing when they are
// dependent.
std::optional<Row> solve(const std::array<Row, kCosts>& normal, const Row& right, unsigned chosen) {
  std::array<std::size_t, kCosts> index{};
  std::size_t n = 0;
  for (std::size_t c = 0; c < kCosts; ++c)
    if ((chosen >> c & 1u) != 0) index[n++] = c;
  std::array<std::array<double, kCosts + 1>, kCosts> m{};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) m[i][j] = normal[index[i]][index[j]];
    m[i][n] = right[index[i]];
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::fabs(m[r][i]) > std::fabs(m[pivot][i])) pivot = r;
    std::swap(m[i], m[pivot]);
    if (std::fabs(m[i][i]) < 1e-12) return std::nullopt;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (std::size_t c = i; c <= n; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  Row result{};
  for (std::size_t i = 0; i < n; ++i) result[index[i]] = m[i][n] / m[i][i];
  return result;
}

// Rows divided by their time and columns by their largest entry: relative errors, and a well-posed matrix.
struct Scaled {
  std::vector<Row> rows;
  Row scale{};
};

Scaled scale(std::span<const Measured> cells) {
  Scaled scaled;
  for (const Measured& cell : cells) {
    Row row = row_of(cell.load);
    for (std::size_t c = 0; c < kCosts; ++c) {
      row[c] /= cell.seconds;
      scaled.scale[c] = std::max(scaled.scale[c], row[c]);
    }
    scaled.rows.push_back(row);
  }
  for (Row& row : scaled.rows)
    for (std::size_t c = 0; c < kCosts; ++c) row[c] /= scaled.scale[c] > 0 ? scaled.scale[c] : 1.0;
  return scaled;
}

double squares(const Scaled& scaled, const Row& costs) {
  double sum = 0.0;
  for (const Row& row : scaled.rows) {
    double predicted = 0.0;
    for (std::size_t c = 0; c < kCosts; ++c) predicted += row[c] * costs[c];
    sum += (predicted - 1.0) * (predicted - 1.0);
  }
  return sum;
}

Row least_squares(const Scaled& scaled) {
  std::array<Row, kCosts> normal{};
  Row right{};
  for (const Row& row : scaled.rows) {
    for (std::size_t a = 0; a < kCosts; ++a) {
      right[a] += row[a];
      for (std::size_t b = 0; b < kCosts; ++b) normal[a][b] += row[a] * row[b];
    }
  }
  Row best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 1u << kCosts; ++chosen) {
    const std::optional<Row> costs = solve(normal, right, chosen);
    if (!costs || std::any_of(costs->begin(), costs->end(), [](double cost) { return cost < 0; })) continue;
    if (const double sum = squares(scaled, *costs); sum < least) {
      least = sum;
      best = *costs;
    }
  }
  for (std::size_t c = 0; c < kCosts; ++c) best[c] /= scaled.scale[c] > 0 ? scaled.scale[c] : 1.0;
  return best;
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
  return load;
}

std::string to_string(const DeviceModel& model) {
  return fmt::format(
      "{:.4g} ms a step + {:.4g} us a decode row + {:.4g} ns a key + {:.4g} us a prompt token + "
      "{:.4g} ns a pair",
      model.step_s * 1e3, model.decode_row_s * 1e6, model.key_s * 1e9, model.prompt_s * 1e6,
      model.pair_s * 1e9);
}

Fit fit(std::span<const Measured> cells) {
  QUIRE_CHECK(!cells.empty(), "no cell");
  for (const Measured& cell : cells) QUIRE_CHECK(cell.seconds > 0, "{} s", cell.seconds);
  const Row costs = least_squares(scale(cells));
  Fit result;
  result.model = {costs[0], costs[1], costs[2], costs[3], costs[4]};
  const bool prompts = std::any_of(cells.begin(), cells.end(),
                                   [](const Measured& cell) { return cell.load.prompt_tokens > 0; });
  if (!prompts) {
    result.model.prompt_s = result.model.decode_row_s;
    result.model.pair_s = result.model.key_s;
    result.note =
        "no cell has a prompt chunk: prompt tokens are taken to cost as much as decode rows; run "
        "`quire bench step --chunk 64,256,512`";
  }
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
    cells.push_back({{batch, batch * context, chunk, chunk * context + chunk * (chunk + 1) / 2}, ms * 1e-3});
  }
  return fit(cells);
}

}  // namespace quire::simulate
