// The matrix of attention backends in words, JSON and Markdown: everything derived from Caps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "attention/caps.h"
#include "base/result.h"
#include "quire/options.h"

namespace quire::cli {

nlohmann::ordered_json rows_to_json(std::span<const attention::Backend> table);
std::string matrix_as_text(std::span<const attention::Backend> table);
std::string matrix_as_markdown(std::span<const attention::Backend> table);

// What `quire backends MODEL --json` prints.
Result<std::string> backends_as_json(const std::string& path, const Options& options);

}  // namespace quire::cli
