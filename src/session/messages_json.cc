#include "session/messages_json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace quire::session {

std::string messages_json(const std::vector<Message>& messages, int indent) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Message& message : messages) {
    array.push_back({{"role", message.role}, {"content", message.content}});
  }
  return json_text(array, indent);
}

}  // namespace quire::session
