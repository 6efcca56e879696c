// Messages as the JSON array that a chat template reads.
#pragma once

#include <string>
#include <vector>

#include "quire/session.h"

namespace quire::session {

std::string messages_json(const std::vector<Message>& messages);

}  // namespace quire::session
