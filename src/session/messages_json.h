// Messages as the JSON array that a chat template reads; `indent` as in json_text (base/text.h).
#pragma once

#include <string>
#include <vector>

#include "quire/session.h"

namespace quire::session {

std::string messages_json(const std::vector<Message>& messages, int indent = -1);

}  // namespace quire::session
