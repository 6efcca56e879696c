#include "tokenizer/stop.h"

#include <fmt/core.h>

#include <algorithm>

namespace quire::tokenizer {
namespace {

// Length of the longest end of `text` that is a beginning, not all, of `stop`.
std::size_t open_end(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  if (stops.size() > kStopStringsMax) {
    return bad_input(fmt::format("{} stop strings are over the limit of {}", stops.size(), kStopStringsMax));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return bad_input("a stop string is empty: leave it out");
    if (stop.size() > kStopBytesMax) {
      return bad_input(
          fmt::format("a stop string of {} bytes is over the limit of {}", stop.size(), kStopBytesMax));
    }
  }
  return StopMatcher(std::move(stops));
}

StopStep StopMatcher::push(std::string_view text) {
  held_ += text;
  token_ends_.push_back(given_ + held_.size());
  StopStep step;
  std::size_t best_begin = 0;
  std::size_t best_end = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::size_t begin = held_.find(stops_[i]);
    if (begin == std::string::npos) continue;
    const std::size_t end = begin + stops_[i].size();
    if (end < best_end || (end == best_end && begin < best_begin)) {
      best_begin = begin;
      best_end = end;
      step.stop = static_cast<int>(i);
    }
  }
  std::size_t give = best_begin;
  if (step.stop < 0) {
    std::size_t hold = 0;
    for (const std::string& stop : stops_) hold = std::max(hold, open_end(held_, stop));
    give = held_.size() - hold;
  }
  step.text = held_.substr(0, give);
  held_.erase(0, give);
  given_ += give;
  while (!token_ends_.empty() && token_ends_.front() <= given_) {
    token_ends_.pop_front();
    ++tokens_done_;
  }
  if (step.stop >= 0) {
    step.bytes_before = given_;
    step.tokens_before = tokens_done_;
    held_.clear();
  }
  return step;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace quire::tokenizer
