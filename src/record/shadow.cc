#include "record/shadow.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "attention/other_names.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mix.h"
#include "base/nearest.h"
#include "base/text.h"
#include "record/fetch.h"
#include "tensor/values.h"

namespace quire::record {
namespace {

using attention::Problem;

void keep_largest(Place& place, double error, const Place& here) {
  // A NaN is the largest difference there is.
  if (std::isnan(place.error) || (!std::isnan(error) && error <= place.error)) return;
  place = here;
  place.error = error;
}

}  // namespace

Result<ShadowWish> parse_shadow(const std::string& text) {
  const std::size_t colon = text.find(':');
  ShadowWish wish;
  const bool parted = colon != std::string::npos && colon > 0;
  if (!parted || !parse_number(std::string_view(text).substr(colon + 1), &wish.fraction) ||
      !(wish.fraction > 0 && wish.fraction <= 1))
    return bad_input(
        fmt::format("--shadow {}: not BACKEND:FRACTION with a fraction over 0 and at most 1, as in "
                    "reference:0.05",
                    text));
  wish.backend = text.substr(0, colon);
  return wish;
}

bool is_shadowed(std::uint64_t step, double fraction) {
  return static_cast<double>(split_mix(step + kSplitMixStep) >> 11) * 0x1p-53 < fraction;
}

double frobenius_gate(const Problem& problem) {
  const double stored = std::max(unit_roundoff(problem.kv.k_type), unit_roundoff(problem.kv.v_type));
  if (stored >= unit_roundoff(DType::fp8_e4m3) && problem.q_type != DType::f32) return 1.5e-2;
  if (problem.q_type == DType::bf16) return 4e-3;
  if (problem.q_type == DType::f16) return 5e-4;
  return 2e-6;
}

Result<std::unique_ptr<Shadow>> Shadow::create(const ShadowWish& wish,
                                               std::span<const attention::Backend> table,
                                               std::span<const attention::Pick> picks,
                                               platform::Device& device) {
  const attention::Backend* row = attention::find_backend(table, wish.backend);
  if (row == nullptr) {
    std::vector<std::string_view> names;
    for (const attention::Backend& other : table) names.push_back(other.name);
    return bad_input(fmt::format("--shadow: there is no attention backend '{}' here{}{}", wish.backend,
                                 did_you_mean(wish.backend, names), attention::name_elsewhere(wish.backend)));
  }
  std::unique_ptr<Shadow> shadow(new Shadow(wish));
  shadow->report_.backend = wish.backend;
  std::string reasons;
  bool serves_any = false;
  for (const attention::Pick& pick : picks) {
    shadow->calls_.push_back(pick.call);
    const auto reason = attention::supports(*row, pick.call.problem);
    shadow->instances_.push_back(reason ? nullptr : row->make(pick.call.problem, device));
    shadow->trace_.push_back(
        reason ? fmt::format("shadow: {} cannot run {}: {}", row->name, pick.call.name, reason->text)
               : fmt::format("shadow: {} runs {} too, on {:g} of the steps, which run eagerly", row->name,
                             pick.call.name, wish.fraction));
    if (reason) reasons += fmt::format("\n  {}: {}", pick.call.name, reason->text);
    serves_any = serves_any || !reason;
  }
  if (!serves_any)
    return bad_input(
        fmt::format("--shadow: {} can run no call of this model: name another row{}", row->name, reasons));
  return shadow;
}

std::int64_t Shadow::plan_bytes(std::size_t index, const attention::Limits& limits) const {
  return instances_[index] == nullptr ? 0 : instances_[index]->workspace_bytes(limits);
}

std::int64_t Shadow::result_bytes(std::span<const attention::Limits> limits) const {
  std::int64_t most = 0;
  for (std::size_t c = 0; c < calls_.size(); ++c) {
    const Problem& p = calls_[c].problem;
    most = std::max(most, std::int64_t{limits[c].max_total_q} * p.q_heads * p.v_dim *
                              static_cast<std::int64_t>(dtype_bytes(p.q_type)));
  }
  return most;
}

void Shadow::set_memory(std::vector<std::unique_ptr<platform::Buffer>> plans,
                        std::unique_ptr<platform::Buffer> results) {
  plans_ = std::move(plans);
  results_ = std::move(results);
}

void Shadow::begin_step(std::uint64_t step) {
  step_ = step;
  ++report_.steps;
}

void Shadow::plan(std::uint32_t index, const attention::StepShape& shape, platform::Stream& stream) {
  stream.synchronize();
  const Clock::time_point begin = Clock::now();
  instances_[index]->plan(shape, {plans_[index]->data(), plans_[index]->bytes()}, stream);
  stream.synchronize();
  report_.seconds += seconds_since(begin);
}

void Shadow::run(std::uint32_t index, std::int32_t layer, std::int32_t first_token, double first_seconds,
                 const attention::StepShape& shape, const attention::Args& args, platform::Stream& stream) {
  const Problem& p = calls_[index].problem;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(p.q_type));
  const std::int64_t width = std::int64_t{p.q_heads} * p.v_dim;
  QUIRE_CHECK(shape.total_q * width * bytes <= results_->bytes(), "rows={} bytes={}", shape.total_q,
              results_->bytes());
  attention::Args mine = args;
  mine.out = results_->data();
  mine.out_row_stride = width;
  mine.out_head_stride = p.v_dim;
  mine.lse = nullptr;
  const Clock::time_point begin = Clock::now();
  instances_[index]->run(shape, mine, {plans_[index]->data(), plans_[index]->bytes()}, stream);
  stream.synchronize();
  const Clock::time_point end = Clock::now();
  Fetch fetch(stream);
  fetch.rows(first_out_, args.out, shape.total_q, args.out_row_stride * bytes, p.q_heads,
             args.out_head_stride * bytes, p.v_dim * bytes);
  fetch.rows(second_out_, mine.out, shape.total_q, width * bytes, p.q_heads, p.v_dim * bytes,
             p.v_dim * bytes);
  fetch.wait();
  compare(calls_[index], layer, first_token, shape.total_q);
  ++report_.calls;
  report_.seconds += seconds(end - begin);
  report_.first_seconds += first_seconds;
  report_.compare_seconds += seconds_since(end);
}

void Shadow::compare(const attention::Call& call, std::int32_t layer, std::int32_t first_token,
                     std::int64_t total_q) {
  const Problem& p = call.problem;
  double squares = 0;
  double first_squares = 0;
  for (std::int64_t at = 0; at < total_q * p.q_heads; ++at) {
    double error = 0;
    double largest = 0;
    for (std::int64_t d = at * p.v_dim; d < (at + 1) * p.v_dim; ++d) {
      const double a = load_value(p.q_type, first_out_.data(), d);
      const double b = load_value(p.q_type, second_out_.data(), d);
      const double difference = std::fabs(a - b);
      if (!(difference <= error)) error = difference;
      largest = std::max(largest, std::fabs(a));
      squares += difference * difference;
      first_squares += a * a;
    }
    const Place here{0,
                     step_,
                     call.name,
                     layer,
                     first_token + static_cast<std::int32_t>(at / p.q_heads),
                     static_cast<std::int32_t>(at % p.q_heads)};
    if (error == 0) continue;
    keep_largest(report_.absolute, error, here);
    keep_largest(report_.relative, largest > 0 ? error / largest : HUGE_VAL, here);
  }
  // Each row may be off by its gate.
  const double gate = 2 * frobenius_gate(p);
  const double frobenius = squares == 0 ? 0 : std::sqrt(squares / std::max(first_squares, 1e-300));
  if (!(frobenius <= gate)) ++report_.calls_over;
  if (frobenius / gate > report_.frobenius / std::max(report_.gate, 1e-300) || report_.gate == 0 ||
      std::isnan(frobenius)) {
    report_.frobenius = frobenius;
    report_.gate = gate;
  }
}

}  // namespace quire::record
