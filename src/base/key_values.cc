#include "base/key_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace quire {

Status each_key_value(std::string_view list, std::string_view flag, std::string_view form,
                      const std::function<Status(std::string_view key, std::string_view value)>& set) {
  std::vector<std::string_view> keys;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos)
      return bad_input(fmt::format("{}: '{}' is not {}", flag, part, form));
    const std::string_view key = part.substr(0, equals);
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      return bad_input(fmt::format("{}: {} is given twice: leave out one", flag, key));
    keys.push_back(key);
    QUIRE_TRY_STATUS(set(key, part.substr(equals + 1)));
  }
  return {};
}

}  // namespace quire
