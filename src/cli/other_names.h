// What options of other programs are called here: a user who comes from vLLM or llama.cpp writes theirs, and
// the letters of a name lead to the wrong one (--max-model-len is nearer to --max-body than to
// --max-context).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::cli {

// "--max-context" for "--max-model-len", where `legal`, the command's own names, has it; else empty. A
// sentence where no single option is meant.
std::string name_here(std::string_view name, std::span<const std::string_view> legal);

}  // namespace quire::cli
