#include "cli/version.h"

#include <fmt/format.h>

#include <sstream>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/build_info.h"
#include "platform/cpu/isa.h"
#include "platform/platform.h"

namespace quire::cli {

std::string version_as_text() {
  std::string text = fmt::format("quire {} ({}), {} build\n{}\n", kVersion, kCommit, kBuildVariant,
                                 platform::cpu::describe_cpu());
  for (const std::string& line : platform::platform_lines()) text += line + "\n";
  text.pop_back();
  return text;
}

std::string version_as_json() {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["commit"] = kCommit;
  json["build"] = kBuildVariant;
  json["instruction_set"] = platform::cpu::to_string(platform::cpu::isa());
  json["cpu"] = platform::cpu::describe_cpu();
  json["platforms"] = platform::platform_lines();
  json["cuda_architectures"] = nlohmann::ordered_json::array();
  std::istringstream targets(kCudaArchitectures);
  for (std::string target; std::getline(targets, target, ';');)
    json["cuda_architectures"].push_back("sm_" + target);
  return json_text(json);
}

}  // namespace quire::cli
