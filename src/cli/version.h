// What this build is: version, commit, build variant, instruction sets, CUDA architectures.
#pragma once

#include <string>

namespace quire::cli {

std::string version_as_text();
std::string version_as_json();

}  // namespace quire::cli
