// The nearest legal name to what a user wrote, for error messages.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// Letters to insert, remove, replace or swap to turn a into b.
int edit_distance(std::string_view a, std::string_view b);

// Up to two candidates by distance, best first; empty when none is close (more than half of the letters
// differ).
std::vector<std::string_view> nearest(std::string_view name, std::span<const std::string_view> candidates);

// " (did you mean cpu?)" or " (legal: a, b, c)" when nothing is close; the tail of a message.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace quire
