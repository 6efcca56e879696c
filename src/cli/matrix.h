// The matrix of attention backends in words, JSON and Markdown: everything derived from Caps.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "attention/caps.h"
#include "base/result.h"
#include "platform/platform.h"
#include "quire/options.h"

namespace quire::cli {

// `device` is who would run the rows: one of an architecture that no box of a row takes is said beside it. In
// Markdown alone nothing is said of this build, so that every build writes the same table.
nlohmann::ordered_json rows_to_json(std::span<const attention::Backend> table,
                                    const platform::DeviceInfo& device);
std::string matrix_as_text(std::span<const attention::Backend> table, const platform::DeviceInfo& device);
std::string matrix_as_markdown(std::span<const attention::Backend> table, const platform::DeviceInfo& device);

// What `quire backends MODEL --json` prints.
Result<std::string> backends_as_json(const std::string& path, const Options& options);

}  // namespace quire::cli
