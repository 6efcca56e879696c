// Trace: requests with their arrival times and the content of their prompts, as the simulator takes them.
//
// Content is not stored token by token. A prompt is a list of segments; a segment is the first `tokens`
// tokens of a stream that its `content` number names, so two prompts share a prefix exactly where their
// segments do. Token i of stream c is a hash of (c, i), or, for a literal stream, the id that the file gave.
// A million requests take some hundred bytes each, and any subset of a trace is a trace (simulate/shrink.h).
//
// What goes wrong is part of the trace too: a request carries its own faults, so what fails can be replayed
// from the file alone and shrunk request by request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mix.h"

namespace quire::simulate {

struct Segment {
  std::uint64_t content = 0;
  std::int32_t tokens = 0;  // [0, tokens) of the stream
  friend bool operator==(const Segment&, const Segment&) = default;
};

inline constexpr std::int32_t kNever = -1;

// Counted in steps that were committed since the request's submission; kNever: not at all.
struct Faults {
  std::int32_t abort_after = kNever;   // the client goes away
  std::int32_t refuse_after = kNever;  // the next allocation after that is refused, once
  float read_tokens_s = 0.0f;  // a slow client reads so many tokens per second; 0: as fast as they come
  friend bool operator==(const Faults&, const Faults&) = default;
};

struct TraceRequest {
  double arrival_s = 0.0;
  std::uint32_t first_segment = 0;  // of Trace::segments
  std::uint32_t segment_count = 0;
  std::int32_t prompt_tokens = 0;    // sum over the segments
  std::int32_t max_tokens = 1;       // what the client asks for
  std::int32_t output_tokens = 1;    // what it gets: less than max_tokens when the model ends by itself
  std::uint64_t output_content = 0;  // stream of the answer: a later prompt may hold it as a segment
  std::int32_t priority = 0;
  std::uint32_t space = 0;  // namespace of the prefix tree: equal content of two spaces is not shared
  Faults faults;
};

struct Trace {
  std::vector<TraceRequest> requests;     // by arrival
  std::vector<Segment> segments;          // of all requests
  std::vector<std::int32_t> literal_ids;  // of literal streams

  std::span<const Segment> prompt(const TraceRequest& request) const {
    return {segments.data() + request.first_segment, request.segment_count};
  }
};

// Appends a request with these segments; empty ones are left out. Sets first_segment, segment_count and
// prompt_tokens.
void add_request(Trace& trace, TraceRequest request, std::span<const Segment> prompt);
// The stream whose tokens are `ids`.
std::uint64_t add_literal(Trace& trace, std::span<const std::int32_t> ids);
// Sorts by arrival; equal times keep their order.
void sort_by_arrival(Trace& trace);

// Token `index` of a stream, in [0, 2^31).
std::int32_t token_of(const Trace& trace, std::uint64_t content, std::int32_t index);
// Appends the tokens of the request's prompt.
void append_prompt(const Trace& trace, const TraceRequest& request, std::vector<std::int32_t>& tokens);

// A well-mixed 64-bit value of two: the only source of content, so equal inputs give equal traces everywhere.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return split_mix(a * kSplitMixStep + b + 0x632be59bd9b4e019u);
}

}  // namespace quire::simulate
