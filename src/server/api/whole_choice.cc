#include "server/api/whole_choice.h"

#include <algorithm>

namespace quire::server::api {

void WholeChoice::take(const Piece& piece) {
  for (const ToolEvent& event : piece.events) {
    const auto index = static_cast<std::size_t>(event.index);
    switch (event.kind) {
      case ToolEvent::Kind::content:
        text += event.text;
        break;
      case ToolEvent::Kind::call:
        calls.resize(std::max(calls.size(), index + 1));
        calls[index].name = event.name;
        break;
      case ToolEvent::Kind::arguments:
        calls.at(index).arguments += event.text;
        break;
    }
  }
  logprobs.insert(logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  if (!piece.finish.empty()) finish = piece.finish;
}

}  // namespace quire::server::api
