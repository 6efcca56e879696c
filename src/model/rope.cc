#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace quire::model {
namespace {

// The pair (as a real number) whose wave turns `rotations` times over the original length.
double yarn_border(const RopeSpec& rope, double rotations) {
  const double positions = static_cast<double>(rope.original_max);
  return rope.rotary_dim * std::log(positions / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

// Pairs below the fast border keep their frequency, pairs above the slow border are interpolated, a
// straight ramp between them.
void apply_yarn(const RopeSpec& rope, std::vector<double>& inv_freq) {
  double low = yarn_border(rope, rope.beta_fast);
  double high = yarn_border(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim) - 1.0);
  if (low == high) high += 0.001;  // as the reference avoids the division by zero
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / rope.factor * ramp + inv_freq[i] * (1.0 - ramp);
  }
}

// Long waves are divided by the factor, short ones stay, those between are blended.
void apply_llama3(const RopeSpec& rope, std::vector<double>& inv_freq) {
  const double original = static_cast<double>(rope.original_max);
  for (double& frequency : inv_freq) {
    const double wave = 2.0 * std::numbers::pi / frequency;
    const double smooth =
        (original / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    if (wave > original / rope.low_freq_factor) {
      frequency /= rope.factor;
    } else if (wave >= original / rope.high_freq_factor) {
      frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
    }
  }
}

}  // namespace

std::string_view to_string(RopeKind kind) {
  switch (kind) {
    case RopeKind::plain:
      return "plain";
    case RopeKind::linear:
      return "linear";
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::yarn:
      return "yarn";
  }
  return "unknown";
}

std::string to_string(const RopeSpec& rope) {
  std::string out = fmt::format("{} theta {} dim {} {}", to_string(rope.kind), rope.theta, rope.rotary_dim,
                                rope.interleaved ? "pairs" : "halves");
  if (rope.kind != RopeKind::plain) out += fmt::format(" factor {}", rope.factor);
  if (rope.kind == RopeKind::llama3) {
    out += fmt::format(" original {} low {} high {}", rope.original_max, rope.low_freq_factor,
                       rope.high_freq_factor);
  }
  if (rope.kind == RopeKind::yarn) {
    out += fmt::format(" original {} beta {} {}{} cos_sin {:.9g}", rope.original_max, rope.beta_fast,
                       rope.beta_slow, rope.truncate ? "" : " not truncated", rope.cos_sin_factor);
  }
  if (!rope.freq_factors.empty()) out += fmt::format(" with {} frequency factors", rope.freq_factors.size());
  return out;
}

std::vector<double> rope_inv_freq(const RopeSpec& rope) {
  QUIRE_CHECK(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0, "rotary_dim={}", rope.rotary_dim);
  std::vector<double> inv_freq(static_cast<std::size_t>(rope.rotary_dim) / 2);
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
  }
  switch (rope.kind) {
    case RopeKind::plain:
      break;
    case RopeKind::linear:
      for (double& frequency : inv_freq) frequency /= rope.factor;
      break;
    case RopeKind::llama3:
      apply_llama3(rope, inv_freq);
      break;
    case RopeKind::yarn:
      apply_yarn(rope, inv_freq);
      break;
  }
  if (!rope.freq_factors.empty()) {
    QUIRE_CHECK(rope.freq_factors.size() == inv_freq.size(), "factors={} pairs={}", rope.freq_factors.size(),
                inv_freq.size());
    for (std::size_t i = 0; i < inv_freq.size(); ++i)
      inv_freq[i] /= static_cast<double>(rope.freq_factors[i]);
  }
  return inv_freq;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace quire::model
