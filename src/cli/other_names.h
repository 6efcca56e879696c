// What options of other programs are called here: a user who comes from vLLM or llama.cpp writes theirs, and
// the letters of a name lead to the wrong one (--max-model-len is nearer to --max-body than to
// --max-context).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::cli {

// "--max-context" for "--max-model-len", where `legal`, the command's own options, has it; else empty. A
// sentence for the model of a command that `takes_model` without a flag.
std::string name_here(std::string_view name, std::span<const std::string_view> legal, bool takes_model);

}  // namespace quire::cli
