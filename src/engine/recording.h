// Recording: one step as recorded work, with what cannot be recorded between its pieces. Recorded once over
// fixed addresses, replayed by launching the pieces in order; a step whose every part can be recorded is one
// graph.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/model.h"
#include "platform/platform.h"

namespace quire::engine {

class Recording final : public model::Recorder {
 public:
  explicit Recording(platform::Stream& stream) : stream_(stream) {}

  // Everything put on the stream between the two is recorded, none of it runs.
  void begin() { stream_.begin_capture(); }
  void end() { close(); }
  void apart(std::function<void()> work) override;

  // Enqueues the step. Allocates nothing.
  void replay() const;
  std::size_t pieces() const { return pieces_.size(); }

 private:
  struct Piece {
    std::unique_ptr<platform::Graph> graph;  // or
    std::function<void()> work;
  };
  void close();

  platform::Stream& stream_;
  std::vector<Piece> pieces_;
};

}  // namespace quire::engine
