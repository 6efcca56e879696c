// Lists of "key=value,key=value" in the value of an option.
#pragma once

#include <functional>
#include <string_view>

#include "base/result.h"

namespace quire {

// set(key, value) for each, in their order, up to the first that it refuses. Refused here: a part that is
// none, in words that name the `flag` and its `form`, and a key that came before.
Status each_key_value(std::string_view list, std::string_view flag, std::string_view form,
                      const std::function<Status(std::string_view key, std::string_view value)>& set);

}  // namespace quire
