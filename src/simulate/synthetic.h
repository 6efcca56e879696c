// Synthetic traces: the traffic that a prefix cache lives on, made from a seed: equal specs and seeds give
// equal traces.
//
//   shared   a few long system prompts, chosen unevenly, each with a short question of its own
//   chat     conversations: every turn repeats the history with its answers and adds a message; some turns go
//            back and edit an earlier message, which forks the history there
//   agents   a task prompt that forks: parallel children share the parent's context and go on by themselves
//   bursts   like shared, in bursts twenty times as dense as the time between them
//   mix      all of these at once
//
// Lengths are drawn around the given means and are no multiples of anything.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "simulate/trace.h"

namespace quire::simulate {

enum class TrafficKind : std::uint8_t { shared, chat, agents, bursts, mix };

struct SyntheticSpec {
  TrafficKind kind = TrafficKind::mix;
  std::int32_t requests = 1000;
  double rate = 4.0;            // requests per second, on average
  std::int32_t prompt = 600;    // mean tokens of a system or task prompt
  std::int32_t message = 60;    // mean tokens of a question, message or agent step
  std::int32_t output = 60;     // mean tokens of an answer
  std::int32_t prefixes = 16;   // different system prompts
  std::int32_t context = 4096;  // most tokens of prompt and output: longer conversations end
  double aborts = 0.0;          // fractions of the requests with that fault
  double refusals = 0.0;
  double slow = 0.0;
};

// "KIND" or "KIND:key=value,...", keys named as above: "chat:requests=5000,rate=20,aborts=0.05".
Result<SyntheticSpec> parse_synthetic(const std::string& text);
std::string to_string(const SyntheticSpec& spec);

Trace make_trace(const SyntheticSpec& spec, std::uint64_t seed);

}  // namespace quire::simulate
