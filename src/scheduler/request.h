// What the scheduler is told about a request, and what it tells back about its end. Token ids are read, never
// kept: they are how prefixes are found again. Sampling and text stay with the engine.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "kv/prefix_tree.h"

namespace quire::scheduler {

inline constexpr std::int32_t kMaxPriority = 63;

struct RequestInfo {
  SequenceId sequence;              // never reused
  std::int32_t prompt_tokens = 0;   // >= 1
  std::int32_t max_new_tokens = 0;  // >= 1; 0 without an answer
  bool score = false;               // logits of every prompt token
  bool answer = true;               // new tokens after the prompt; a request without has a score
  bool guided = false;              // no token is planned before the one before it is known
  // The prompt, then the output: memory of the caller that stays where it is until the sequence has ended
  // (commit(), expire(), cancel()). Outputs that commit() accepts stand there before. Null: unknown tokens;
  // the request shares nothing.
  const std::int32_t* tokens = nullptr;
  std::int32_t priority = 0;                // 0 .. kMaxPriority, higher first (Policy::priority)
  std::int64_t deadline_us = 0;             // by the clock of expire(); 0: none
  const kv::NamespaceKey* space = nullptr;  // whose prefixes it shares; null: NamespaceKey{}
};

// What a step made of one row of its plan.
struct RowResult {
  std::int32_t accepted = 0;  // tokens that join the output: 1 where the row yields a token, else 0
  bool finished = false;      // the engine wants no more of this sequence (end token, stop string)
  bool spoiled = false;       // with finished: what it computed is not to be shared
};

enum class EndReason : std::uint8_t {
  finished,  // RowResult::finished
  length,    // max_new_tokens
  scored,    // every prompt token has its logits, and no answer is wanted
};

struct Ended {
  SequenceId sequence;
  EndReason reason = EndReason::finished;
  friend bool operator==(const Ended&, const Ended&) = default;
};

}  // namespace quire::scheduler
