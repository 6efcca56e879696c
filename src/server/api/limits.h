// Bounds on the texts of a request, in bytes.
#pragma once

#include <cstddef>

namespace quire::server::api {

// Messages, instructions, arguments of calls: none of their own, as the body's limit is lower.
inline constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;
// A prompt, text or conversation: so much for each token of the context, and not less than the first. Tokens
// are shorter, so that what is over it cannot fit, and costs nothing.
inline constexpr std::size_t kPromptBytesPerToken = 256;
inline constexpr std::size_t kPromptBytesMin = std::size_t{1} << 20;
// /tokenize.
inline constexpr std::size_t kEncodedBytesMax = std::size_t{1} << 20;
// A grammar, and what tools and schemas say of themselves.
inline constexpr std::size_t kDescriptionBytesMax = std::size_t{1} << 20;

inline constexpr std::size_t kModelBytesMax = 1024;
// Names and ids in messages and items.
inline constexpr std::size_t kNameBytesMax = 256;
// Functions and schemas.
inline constexpr std::size_t kFunctionBytesMax = 64;

}  // namespace quire::server::api
