// The named maxima of an engine. Options are checked against them in resolve(), buffers are sized by them.
#pragma once

#include <cstdint>

namespace quire::engine {

inline constexpr std::int32_t kMaxRunning = 1024;       // sequences decoding together
inline constexpr std::int32_t kMaxChunkTokens = 65536;  // prompt tokens of one step
inline constexpr std::int32_t kMaxThreads = 1024;
inline constexpr std::int32_t kMaxScoreTop = 128;     // most likely tokens reported per scored position
inline constexpr std::int32_t kMaxLogprobs = 20;      // most likely tokens reported per token of an answer
inline constexpr std::int32_t kScoreRows = 32;        // logits rows of one block when scoring
inline constexpr std::int32_t kMaxStopTokens = 64;    // of one request
inline constexpr std::int64_t kMaxWaiting = 1 << 20;  // requests submitted and not finished

// A hit that ends inside a page copies its tokens from so many on, else they are computed again.
// docs/PREFIX_CACHE.md has the curves: a copy always costs less.
inline constexpr std::int32_t kCopyTokens = 1;

// What `auto` means.
inline constexpr std::int32_t kAutoRunningCpu = 16;
inline constexpr std::int32_t kAutoRunningGpu = 256;
inline constexpr std::int32_t kAutoChunkCpu = 512;
inline constexpr std::int32_t kAutoChunkGpu = 2048;
inline constexpr std::int64_t kAutoRecordBytes = std::int64_t{1} << 30;
// KV memory by itself: on the CPU at most half of what is left, and not over this unless one sequence of the
// longest context needs it (a short run on a big machine should not claim what it cannot use); a GPU is the
// engine's own, so there it may take what the limits can use of nearly all that is left.
inline constexpr std::int64_t kAutoKvBytes = std::int64_t{1} << 30;
inline constexpr double kAutoKvShareCpu = 0.5;
inline constexpr double kAutoKvShareGpu = 0.9;
// Recording decode steps at start ends after so long; batches without a recording run eagerly.
inline constexpr double kRecordSeconds = 2.0;

}  // namespace quire::engine
