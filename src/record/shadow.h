// Shadow: a second row runs the same attention calls on a fraction of the steps, into memory of its own, and
// its results are compared with those that the model goes on with. Nothing of the run changes but its time.
// Which steps: a hash of the step's number, so the same run shadows the same steps.
// Thread rule: the engine's thread; a shadowed step waits for the stream around every call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/select.h"
#include "base/result.h"
#include "platform/platform.h"

namespace quire::record {

struct ShadowWish {
  std::string backend;
  double fraction = 0;  // of the steps, in (0, 1]
};
// "BACKEND:FRACTION", as in reference:0.05.
Result<ShadowWish> parse_shadow(const std::string& text);
bool is_shadowed(std::uint64_t step, double fraction);

// Where two results differ most.
struct Place {
  double error = 0;
  std::uint64_t step = 0;
  std::string call;
  std::int32_t layer = 0;
  std::int32_t row = 0;  // token row of the step
  std::int32_t head = 0;
};

struct ShadowReport {
  std::string backend;
  std::int64_t steps = 0;       // shadowed
  std::int64_t calls = 0;       // of these steps, that the row can serve
  std::int64_t calls_over = 0;  // whose relative Frobenius error is over the gate
  double frobenius = 0;         // the worst of a call
  double gate = 0;              // of that call
  Place absolute;               // largest |a - b|
  Place relative;               // largest |a - b| over the largest |a| of its row and head
  double seconds = 0;           // of the shadow row's plans and runs
  double first_seconds = 0;     // of the first rows' runs of the same calls
  double compare_seconds = 0;   // fetching and comparing
};

class Shadow {
 public:
  // Instances for the calls that the row can serve; refuses when it serves none, with its reasons.
  static Result<std::unique_ptr<Shadow>> create(const ShadowWish& wish,
                                                std::span<const attention::Backend> table,
                                                std::span<const attention::Pick> picks,
                                                platform::Device& device);

  // For the ledger: bytes of call `index`'s plan, and of the results of the largest call.
  std::int64_t plan_bytes(std::size_t index, const attention::Limits& limits) const;
  std::int64_t result_bytes(std::span<const attention::Limits> limits) const;
  // Takes that memory. Once, before the first step.
  void set_memory(std::vector<std::unique_ptr<platform::Buffer>> plans,
                  std::unique_ptr<platform::Buffer> results);
  // What it does, one line a call: "shadow: reference runs full.decode too".
  const std::vector<std::string>& trace() const { return trace_; }

  bool wants(std::uint64_t step) const { return is_shadowed(step, wish_.fraction); }
  void begin_step(std::uint64_t step);
  bool serves(std::uint32_t index) const { return instances_[index] != nullptr; }
  void plan(std::uint32_t index, const attention::StepShape& shape, platform::Stream& stream);
  // After `first_seconds` of the first row's run.
  void run(std::uint32_t index, std::int32_t layer, std::int32_t first_token, double first_seconds,
           const attention::StepShape& shape, const attention::Args& args, platform::Stream& stream);

  const ShadowReport& report() const { return report_; }

 private:
  explicit Shadow(ShadowWish wish) : wish_(std::move(wish)) {}
  void compare(const attention::Call& call, std::int32_t layer, std::int32_t first_token,
               std::int64_t total_q);

  ShadowWish wish_;
  std::vector<attention::Call> calls_;
  std::vector<std::unique_ptr<attention::Attention>> instances_;  // null: the row cannot serve the call
  std::vector<std::unique_ptr<platform::Buffer>> plans_;
  std::unique_ptr<platform::Buffer> results_;
  std::vector<std::string> trace_;
  std::vector<std::uint8_t> first_out_, second_out_;  // on the host
  std::uint64_t step_ = 0;
  ShadowReport report_;
};

// Relative Frobenius error that one row may have against the oracle (docs/ATTENTION.md), by the types.
double frobenius_gate(const attention::Problem& problem);

}  // namespace quire::record
