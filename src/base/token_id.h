// Token ids where they are written as text: keys of a logit bias.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/text.h"

namespace quire {

// Digits alone, as a JSON number from 0 is written: "07" and "-0" could name a token a second time.
inline std::optional<std::int32_t> parse_token_id(std::string_view text) {
  std::int32_t id = 0;
  const bool fine = parse_number(text, &id) && id >= 0 && std::to_string(id) == text;
  return fine ? std::optional(id) : std::nullopt;
}

}  // namespace quire
