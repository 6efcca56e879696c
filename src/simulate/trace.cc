#include "simulate/trace.h"

#include <algorithm>

#include "base/check.h"

namespace quire::simulate {
namespace {

// Literal streams have this bit; the rest is the offset of their first id.
constexpr std::uint64_t kLiteral = std::uint64_t{1} << 63;

}  // namespace

void add_request(Trace& trace, TraceRequest request, std::span<const Segment> prompt) {
  request.first_segment = static_cast<std::uint32_t>(trace.segments.size());
  request.prompt_tokens = 0;
  for (const Segment& segment : prompt) {
    if (segment.tokens == 0) continue;
    trace.segments.push_back(segment);
    request.prompt_tokens += segment.tokens;
  }
  request.segment_count = static_cast<std::uint32_t>(trace.segments.size()) - request.first_segment;
  trace.requests.push_back(request);
}

std::uint64_t add_literal(Trace& trace, std::span<const std::int32_t> ids) {
  const std::uint64_t offset = trace.literal_ids.size();
  trace.literal_ids.insert(trace.literal_ids.end(), ids.begin(), ids.end());
  return kLiteral | offset;
}

void sort_by_arrival(Trace& trace) {
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; });
}

std::int32_t token_of(const Trace& trace, std::uint64_t content, std::int32_t index) {
  if ((content & kLiteral) != 0) {
    const std::uint64_t at = (content & ~kLiteral) + static_cast<std::uint64_t>(index);
    QUIRE_CHECK(at < trace.literal_ids.size(), "token {} of {}", at, trace.literal_ids.size());
    return trace.literal_ids[at];
  }
  return static_cast<std::int32_t>(mix(content, static_cast<std::uint64_t>(index)) >> 33);
}

void append_prompt(const Trace& trace, const TraceRequest& request, std::vector<std::int32_t>& tokens) {
  for (const Segment& segment : trace.prompt(request))
    for (std::int32_t i = 0; i < segment.tokens; ++i) tokens.push_back(token_of(trace, segment.content, i));
}

}  // namespace quire::simulate
