// StopMatcher: finds stop strings in streamed text, across the borders of the pieces. Text that may be the
// beginning of a stop string is held back; the stop string itself and what follows are never given out.
// The result does not depend on how the text is cut into pieces: the stop string that is complete first
// wins, and of those that end at the same byte the longest one.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::tokenizer {

inline constexpr std::size_t kStopStringsMax = 64;
inline constexpr std::size_t kStopBytesMax = 4096;

struct StopStep {
  std::string text;               // may be shown now
  int stop = -1;                  // index of the stop string that is complete, or -1
  std::size_t bytes_before = 0;   // with stop >= 0: bytes of text before it, since the beginning
  std::size_t tokens_before = 0;  // with stop >= 0: pushed pieces whose text lies wholly before it
};

// Not thread-safe: one per sequence.
class StopMatcher {
 public:
  // Refuses empty stop strings and more or longer ones than the limits above. No stop strings is fine:
  // everything passes.
  static Result<StopMatcher> create(std::vector<std::string> stops);

  // `text` is what one further token added (it may be empty). REQUIRES that no stop was found yet.
  StopStep push(std::string_view text);
  // The answer ended without a stop string: what was held.
  std::string flush();

 private:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  std::vector<std::string> stops_;
  std::string held_;                    // not given out yet
  std::size_t given_ = 0;               // bytes given out
  std::size_t tokens_done_ = 0;         // pieces that end at or before `given_`
  std::deque<std::size_t> token_ends_;  // ends of the pieces after those, as bytes since the beginning
};

}  // namespace quire::tokenizer
