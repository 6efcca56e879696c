// A chat template from any bytes, rendered with a few messages.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "session/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto made = quire::session::ChatTemplate::parse(text, "template");
  if (!made) return 0;
  quire::session::ChatInputs inputs;
  inputs.messages =
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"a<|end|>b"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,true]}}}]},)"
      R"({"role":"tool","content":"1"}])";
  inputs.tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"array"}}}}}])";
  inputs.bos_token = "<s>";
  inputs.eos_token = "</s>";
  inputs.now = "2026-03-05T09:07:00";
  const auto chat = made->render(inputs);
  if (!chat) return 0;
  std::size_t end = 0;
  for (const auto& range : chat->user) {
    QUIRE_CHECK(range.begin >= end && range.end > range.begin, "range {}..{} after {}", range.begin,
                range.end, end);
    end = range.end;
  }
  QUIRE_CHECK(end <= chat->text.size(), "range to {} of {}", end, chat->text.size());
  return 0;
}
