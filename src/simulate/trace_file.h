// Reads and writes traces: JSON lines, two formats, told apart line by line.
//
// Mooncake's: {"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [...]}; hash id i stands
// for the content of tokens [512 i, 512 (i + 1)) of the prompt, the last one for what is left.
//
// Quire's own: {"arrival_s", "prompt": [[content, tokens], ...] or "ids": [...], "max_tokens"} and, if
// wanted, "output_tokens" (the model ends by itself after so many), "output" (the answer's content),
// "priority", "space", "abort_after", "refuse_after", "read_tokens_s" (trace.h: Faults). A file of `quire run
// --prompts` whose lines hold "ids", "max_tokens" and "arrival_s" is such a trace as it stands.
#pragma once

#include <string>

#include "base/result.h"
#include "simulate/trace.h"

namespace quire::simulate {

inline constexpr std::int32_t kMooncakeBlock = 512;  // tokens per hash id

// Bounded; an error names the line. The requests come out sorted by arrival.
Result<Trace> parse_trace(const std::string& text, const std::string& name);

// Quire's own format; parse_trace() of it gives the same trace.
std::string to_text(const Trace& trace);

}  // namespace quire::simulate
