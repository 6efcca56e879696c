#include "server/api/limits.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace quire::server::api {
namespace {

constexpr auto kNamed =
    std::to_array<std::pair<std::string_view, std::int64_t>>({{"NameBytesMax", kNameBytesMax},
                                                              {"FunctionBytesMax", kFunctionBytesMax},
                                                              {"ToolsMax", kToolsMax},
                                                              {"RequestsMax", kRequestsMax},
                                                              {"TokenIdMax", kTokenIdMax},
                                                              {"StopsMax", kStopsMax},
                                                              {"StopBytesMax", kStopBytesMax},
                                                              {"BiasesMax", kBiasesMax},
                                                              {"BiasMost", kBiasMost}});

}  // namespace

std::string with_limits(std::string_view schema) {
  std::string text;
  for (std::size_t at = 0; at < schema.size();) {
    if (schema[at] != '@') {
      text += schema[at++];
      continue;
    }
    const auto* end = std::find_if_not(schema.begin() + at + 1, schema.end(), is_letter_or_digit);
    const std::string_view name =
        schema.substr(at + 1, static_cast<std::size_t>(end - schema.begin()) - at - 1);
    const auto* named =
        std::find_if(kNamed.begin(), kNamed.end(), [&](const auto& limit) { return limit.first == name; });
    QUIRE_CHECK(named != kNamed.end(), "no limit is called {}", name);
    text += std::to_string(named->second);
    at += 1 + name.size();
  }
  return text;
}

}  // namespace quire::server::api
