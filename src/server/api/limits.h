// Bounds on what a request holds, in bytes where they say so. Readers and the JSON schemas of /openapi.json
// take them from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::server::api {

// Messages, instructions, arguments of calls: none of their own, as the body's limit is lower by default.
inline constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;
// A prompt, text or conversation: so much for each token of the context, and not less than kPromptBytesMin.
// Tokens are a few bytes, so that hardly a text over it could fit, and it costs nothing. A conversation is
// counted as JSON with its tools, documents and template arguments, of which a template may show less.
inline constexpr std::size_t kPromptBytesPerToken = 256;
inline constexpr std::size_t kPromptBytesMin = std::size_t{1} << 20;
// A grammar, and what tools and schemas say of themselves.
inline constexpr std::size_t kDescriptionBytesMax = std::size_t{1} << 20;

inline constexpr std::size_t kModelBytesMax = 1024;
// Names and ids in messages and items.
inline constexpr std::size_t kNameBytesMax = 256;
// Functions and schemas.
inline constexpr std::size_t kFunctionBytesMax = 64;
inline constexpr std::size_t kToolsMax = 128;

inline constexpr std::int64_t kChoicesMax = 128;     // per prompt
inline constexpr std::size_t kRequestsMax = 1024;    // prompts x choices of one call
inline constexpr std::int64_t kTokensMax = 1 << 30;  // of one answer, before the context says less
inline constexpr std::int64_t kLogprobsMax = 20;     // most likely tokens per place
inline constexpr std::int64_t kTokenIdMax = INT32_MAX;

inline constexpr std::size_t kStopsMax = 16;
inline constexpr std::size_t kStopBytesMax = 1024;
inline constexpr std::size_t kBiasesMax = 1024;
inline constexpr std::int64_t kBiasMost = 100;  // either way

// The text of a JSON schema with numbers for the limits that it names: @NameBytesMax for kNameBytesMax. A
// name that is none is a bug of ours.
std::string with_limits(std::string_view schema);

}  // namespace quire::server::api
