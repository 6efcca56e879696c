#include "engine/recording.h"

#include <utility>

namespace quire::engine {

void Recording::close() {
  std::unique_ptr<platform::Graph> graph = stream_.end_capture();
  if (graph->nodes() > 0) pieces_.push_back({std::move(graph), nullptr});
}

void Recording::apart(std::function<void()> work) {
  close();
  pieces_.push_back({nullptr, std::move(work)});
  stream_.begin_capture();
}

void Recording::replay() const {
  for (const Piece& piece : pieces_) {
    if (piece.graph != nullptr) {
      stream_.launch(*piece.graph);
    } else {
      piece.work();
    }
  }
}

}  // namespace quire::engine
