// What attention backends of other engines are called, and which row does that job here: a user who comes
// from vLLM or SGLang asks for theirs (`--attention-backend fa3`). docs/ATTENTION.md has the same table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::attention {

struct OtherNames {
  std::string_view names;  // "fa3, fa4": in small letters, as one line of the document has them
  std::string_view here;   // the row or rows, or why there is none
};
std::span<const OtherNames> other_names();

// "; fa3 elsewhere: ..." for the end of a message about a backend that there is not; empty when no engine
// that we know of has one of that name. Letters count alike large and small (FLASH_ATTN).
std::string name_elsewhere(std::string_view name);

}  // namespace quire::attention
