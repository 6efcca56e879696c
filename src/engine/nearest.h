// The nearest legal name to what the user typed, for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::engine {

// The candidate with the smallest edit distance, or "" when none is near (more than half of it differs).
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

// "did you mean "reference"? There are: cpu, reference."
std::string name_hint(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace quire::engine
