// What the scheduler is told about a request, and what it tells back about its end. Token ids, sampling and
// text stay with the engine.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace quire::scheduler {

struct RequestInfo {
  SequenceId sequence;              // never reused
  std::int32_t prompt_tokens = 0;   // >= 1
  std::int32_t max_new_tokens = 0;  // >= 1; scoring ignores it
  bool score = false;               // logits of every prompt token instead of new tokens
};

// What a step made of one row of its plan.
struct RowResult {
  std::int32_t accepted = 0;  // tokens that join the output: 1 where the row yields a token, else 0
  bool finished = false;      // the engine wants no more of this sequence (end token, stop string)
};

enum class EndReason : std::uint8_t {
  finished,  // RowResult::finished
  length,    // max_new_tokens
  scored,    // every prompt token has its logits
};

struct Ended {
  SequenceId sequence;
  EndReason reason = EndReason::finished;
  friend bool operator==(const Ended&, const Ended&) = default;
};

}  // namespace quire::scheduler
