#include "session/messages_json.h"

#include <nlohmann/json.hpp>

namespace quire::session {

std::string messages_json(const std::vector<Message>& messages) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Message& message : messages) {
    array.push_back({{"role", message.role}, {"content", message.content}});
  }
  return array.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace quire::session
