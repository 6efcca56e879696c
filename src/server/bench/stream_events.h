// What the events of a streamed OpenAI answer say: text, the end, usage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::server::bench {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
};

struct StreamEvent {
  bool has_text = false;  // of the first choice: text, reasoning or a part of a tool call
  bool finished = false;
  bool done = false;  // the [DONE] behind the last event
  std::optional<Usage> usage;
  std::string error;  // the server's message
};

// Cuts server-sent events out of bytes as they come.
class EventReader {
 public:
  void feed(std::string_view bytes) { rest_ += bytes; }
  // The data of the next event; false: not there yet.
  bool next(std::string& data);

 private:
  std::string rest_;
};

// Of a chunk of /v1/completions or /v1/chat/completions. Refuses what is no JSON object.
Result<StreamEvent> parse_event(std::string_view data);

}  // namespace quire::server::bench
