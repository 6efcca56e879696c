#include "server/bench/stream_events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace quire::server::bench {
namespace {

using PlainJson = nlohmann::json;

// The member when `json` is an object that has it, else null.
const PlainJson& member(const PlainJson& json, const char* name) {
  static const PlainJson kNull;
  if (!json.is_object()) return kNull;
  const auto found = json.find(name);
  return found == json.end() ? kNull : *found;
}

std::int64_t number(const PlainJson& json) { return json.is_number() ? json.get<std::int64_t>() : 0; }

bool is_text(const PlainJson& json) {
  return json.is_string() && !json.get_ref<const std::string&>().empty();
}

bool has_text(const PlainJson& choice) {
  if (is_text(member(choice, "text"))) return true;
  const PlainJson& delta = member(choice, "delta");
  const PlainJson& calls = member(delta, "tool_calls");
  return is_text(member(delta, "content")) || is_text(member(delta, "reasoning_content")) ||
         (calls.is_array() && !calls.empty());
}

}  // namespace

bool EventReader::next(std::string& data) {
  for (;;) {
    // An empty line ends an event; lines end in \n or \r\n.
    std::size_t end = rest_.find("\n\n");
    std::size_t skip = 2;
    if (const std::size_t other = rest_.find("\n\r\n"); other < end) {
      end = other;
      skip = 3;
    }
    if (end == std::string::npos) return false;
    const std::string event = rest_.substr(0, end);
    rest_.erase(0, end + skip);
    data.clear();
    bool any = false;
    for (std::size_t at = 0; at <= event.size();) {
      std::size_t line_end = std::min(event.find('\n', at), event.size());
      std::string_view line = std::string_view(event).substr(at, line_end - at);
      at = line_end + 1;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.substr(0, 5) != "data:") continue;
      line.remove_prefix(line.size() > 5 && line[5] == ' ' ? 6 : 5);
      if (any) data += '\n';
      data += line;
      any = true;
    }
    if (any) return true;
  }
}

Result<StreamEvent> parse_event(std::string_view data) {
  StreamEvent event;
  if (data == "[DONE]") {
    event.done = true;
    return event;
  }
  const PlainJson json = PlainJson::parse(data, nullptr, false);
  if (!json.is_object()) return bad_input(fmt::format("an event is no JSON object: {}", data.substr(0, 100)));
  if (const PlainJson& error = member(json, "error"); !error.is_null()) {
    const PlainJson& message = member(error, "message");
    event.error = message.is_string() ? message.get<std::string>() : json_text(error);
    return event;
  }
  const PlainJson& choices = member(json, "choices");
  if (choices.is_array() && !choices.empty()) {
    event.has_text = has_text(choices[0]);
    event.finished = member(choices[0], "finish_reason").is_string();
  }
  if (const PlainJson& usage = member(json, "usage"); usage.is_object()) {
    event.usage = Usage{number(member(usage, "prompt_tokens")), number(member(usage, "completion_tokens")),
                        number(member(member(usage, "prompt_tokens_details"), "cached_tokens"))};
  }
  return event;
}

}  // namespace quire::server::bench
