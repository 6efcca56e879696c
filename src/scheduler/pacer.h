// Pacer: how many prompt tokens a step may take beside running decodes, so that these get their next token
// within a target time. Costs are what steps took, as moving averages; nothing is measured here.
#pragma once

#include <cstdint>

namespace quire::scheduler {

// What a step took, for Scheduler::observe().
struct StepCost {
  std::int32_t decode_rows = 0;
  std::int32_t extend_tokens = 0;
  double us = 0.0;
};

class Pacer {
 public:
  explicit Pacer(std::int64_t target_us) : target_us_(static_cast<double>(target_us)) {}

  void observe(const StepCost& cost);
  // At most `most` tokens; all of them without a target, without decodes, or before anything was observed.
  // Never fewer than kLeastTokens (or `most`): a prompt always gets on.
  std::int32_t chunk_tokens(std::int32_t decode_rows, std::int32_t most) const;

  static constexpr std::int32_t kLeastTokens = 16;

 private:
  double target_us_ = 0.0;
  double decode_us_ = 0.0;  // of a step with decodes only
  double token_us_ = 0.0;   // of one prompt token more
};

}  // namespace quire::scheduler
