// Tool calls in a model's answer: text in, as it streams, and events out. Pure text: no model, no thread.
//
// Formats. Each is what the chat templates of its family teach the model to write:
//
//   hermes (Hermes, Qwen 2.5, Qwen 3), once per call:
//     <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
//   llama (Llama 3.1, 3.2), as the whole answer, calls apart by ";", after <|python_tag|> or not:
//     {"name": "f", "parameters": {...}}
//   mistral (Mistral, Ministral, Devstral), all calls as one list, or each with a marker of its own:
//     [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
//     [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{...}      where [CALL_ID]... and [ARGS] may be missing
//   deepseek (DeepSeek-V3, R1; V3.1), calls between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>:
//     <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>
//     <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

enum class ToolFormat : std::uint8_t { none, hermes, llama, mistral, deepseek };
std::string_view to_string(ToolFormat format);

struct ToolEvent {
  enum class Kind : std::uint8_t {
    content,    // `text` is text beside the calls
    call,       // call number `index` begins, of the function `name`
    arguments,  // `text` goes on with the arguments of call `index`: JSON, an object when complete
  };
  Kind kind = Kind::content;
  std::int32_t index = 0;
  std::string name;
  std::string text;
  friend bool operator==(const ToolEvent&, const ToolEvent&) = default;
};

// One answer's parser. However the text is cut into pieces, the events are the same when neighbours of one
// kind and index are joined. No part of a marker is ever content of a call, and a marker that is not complete
// is held back. What looks like a call and is none (broken JSON, no name, a name that is not a tool's) comes
// out as content, as it stands, unless its arguments have begun: then the call stays as it is and what
// follows it is dropped up to the next call.
class ToolParser {
 public:
  // `names` are the tools' names; empty: any name is good.
  static std::unique_ptr<ToolParser> make(ToolFormat format, std::vector<std::string> names);
  virtual ~ToolParser() = default;

  // Appends what the next piece of the answer makes known. `text` need not end at a character.
  virtual void push(std::string_view text, std::vector<ToolEvent>& events) = 0;
  // The answer is complete: appends what was held back.
  virtual void finish(std::vector<ToolEvent>& events) = 0;
  // Calls begun so far.
  virtual std::int32_t calls() const = 0;
};

}  // namespace quire
