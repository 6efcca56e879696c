#include "scheduler/pacer.h"

#include <algorithm>

namespace quire::scheduler {
namespace {

constexpr double kNew = 0.2;  // weight of the newest step

void average(double& value, double sample) {
  value = value == 0.0 ? sample : (1.0 - kNew) * value + kNew * sample;
}

}  // namespace

void Pacer::observe(const StepCost& cost) {
  if (cost.us <= 0.0) return;
  if (cost.extend_tokens == 0) return average(decode_us_, cost.us);
  const double rest = cost.us - (cost.decode_rows > 0 ? decode_us_ : 0.0);
  if (rest > 0.0) average(token_us_, rest / cost.extend_tokens);
}

std::int32_t Pacer::chunk_tokens(std::int32_t decode_rows, std::int32_t most) const {
  if (target_us_ <= 0.0 || decode_rows == 0 || token_us_ == 0.0) return most;
  const double tokens = (target_us_ - decode_us_) / token_us_;
  const std::int32_t least = std::min(kLeastTokens, most);
  return tokens <= least ? least : static_cast<std::int32_t>(std::min<double>(tokens, most));
}

}  // namespace quire::scheduler
