#include "cli/environment.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest.h"

namespace quire::cli {

namespace {

constexpr std::string_view kPrefix = "QUIRE_";
// Read by other parts of the program, by the tests and by scripts.
constexpr std::string_view kOthers[] = {"QUIRE_CPU_ISA", "QUIRE_FUZZ_SECONDS", "QUIRE_GOLDEN_DIR",
                                        "QUIRE_GOLDEN_FULL"};

// A letter or two away, in a name of three times as many letters at least.
bool is_slip(std::string_view name, std::string_view legal) {
  const int distance = edit_distance(name, legal);
  return distance <= 2 && 3 * distance <= static_cast<int>(name.size());
}

}  // namespace

Status check_environment(std::span<const Command> commands) {
  std::vector<std::string> legal(std::begin(kOthers), std::end(kOthers));
  for (const Command& command : commands)
    for (const Setting& setting : command.settings->all()) legal.push_back(environment_name(setting.name));
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view entry = *variable;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || std::find(legal.begin(), legal.end(), name) != legal.end()) continue;
    for (const std::string& other : legal) {
      if (!is_slip(name.substr(kPrefix.size()), std::string_view(other).substr(kPrefix.size()))) continue;
      return bad_input(fmt::format(
          "the environment sets {}, which is unknown (did you mean {}?): rename or unset it", name, other));
    }
    spdlog::warn("the environment sets {}, which is no option of quire and does nothing", name);
  }
  return {};
}

}  // namespace quire::cli
