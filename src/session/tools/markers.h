// The markers of tool calls by format, as quire/tools.h shows them in use: what templates are known by,
// parsers look for and grammars write.
#pragma once

#include <string_view>

namespace quire::session {

inline constexpr std::string_view kHermesBegin = "<tool_call>";
inline constexpr std::string_view kHermesEnd = "</tool_call>";

inline constexpr std::string_view kLlamaTag = "<|python_tag|>";

inline constexpr std::string_view kMistralCalls = "[TOOL_CALLS]";
inline constexpr std::string_view kMistralId = "[CALL_ID]";
inline constexpr std::string_view kMistralArgs = "[ARGS]";

inline constexpr std::string_view kDeepseekCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kDeepseekCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kDeepseekCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kDeepseekCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kDeepseekSep = "<｜tool▁sep｜>";
inline constexpr std::string_view kDeepseekFence = "```json";  // around the arguments, in the older form

}  // namespace quire::session
