// The engine's side of a request: its tokens and what was reported of it. The scheduler knows only its
// counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "kv/miss.h"
#include "quire/engine.h"

namespace quire::engine {

struct Live {
  Request request;                   // its prompt is moved to `tokens`
  std::vector<std::int32_t> tokens;  // prompt, then output
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  bool ends_by_context = false;    // max_new_tokens is what the context leaves
  std::string failure;             // why it ends early; empty: it does not
  bool dead_end = false;           // the guide allowed no token
  std::int32_t cached_tokens = 0;  // when it was first admitted
  kv::MissReport miss;
  std::uint64_t history_step = 0;  // its tokens are on their way to the device until this step is taken in
  Clock::time_point submitted;
  Clock::time_point admitted;  // for the first time
  Clock::time_point first_token;

  std::int32_t completion_tokens() const { return static_cast<std::int32_t>(tokens.size()) - prompt_tokens; }
};

struct RequestLimits {
  std::int32_t vocab = 0;
  std::int32_t max_context = 0;                                    // tokens of prompt and answer
  std::int64_t model_context = 0;                                  // what max_context may be raised to
  std::int32_t most_kv_tokens = 0;                                 // of one sequence, in this pool
  std::function<std::int64_t(std::int64_t tokens)> kv_memory_for;  // bytes with which one has so many
};

// Refuses what can never run, with the numbers.
Status check_request(const Request& request, const RequestLimits& limits);

// By sequence. Nothing is allocated between add() and remove().
class Requests {
 public:
  Live& add(SequenceId id, Request request, const RequestLimits& limits);
  Live& at(SequenceId id);
  Live* find(SequenceId id);
  void remove(SequenceId id) { live_.erase(id.value); }
  std::size_t size() const { return live_.size(); }
  // visit(SequenceId, const Live&), in no order.
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [id, live] : live_) visit(SequenceId{id}, live);
  }

 private:
  std::unordered_map<std::uint32_t, Live> live_;
};

}  // namespace quire::engine
