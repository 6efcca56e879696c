#include "server/api/call_ids.h"

#include <cstdint>

#include "base/mix.h"

namespace quire::server::api {

std::string call_id(ToolFormat format, std::string_view id, std::size_t choice, std::size_t call) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::uint64_t state = 0xcbf29ce484222325;  // FNV-1a of what the id is of
  for (const char c : id) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  state = (state ^ choice) * 0x100000001b3;
  state = (state ^ call) * 0x100000001b3;
  const bool mistral = format == ToolFormat::mistral;
  std::string out = mistral ? "" : "call_";
  for (int i = 0; i < (mistral ? 9 : 24); ++i) out += kLetters[next_split_mix(state) % kLetters.size()];
  return out;
}

}  // namespace quire::server::api
