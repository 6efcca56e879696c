// Text from untrusted files, made fit for messages.
#pragma once

#include <string>
#include <string_view>

namespace quire::checkpoint {

// Control characters and bytes that are not UTF-8 as \xNN, cut to 80 characters with "...".
std::string printable(std::string_view text);

// A name as tensors and metadata keys may have: UTF-8 without control characters, 1..most bytes.
bool is_plain_name(std::string_view text, std::size_t most);

}  // namespace quire::checkpoint
