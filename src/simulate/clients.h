// Clients: what the simulator knows of each request beside the scheduler, and when each of them was served.
// Internal to simulate/.
#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "simulate/trace.h"

namespace quire::simulate {

enum class ClientState : std::uint8_t { unborn, live, finished, refused, aborted };

struct Client {
  ClientState state = ClientState::unborn;
  std::uint32_t live = 0;  // index of its LivePrompt while live
  std::int32_t outputs = 0;
  double first_token_s = -1.0;
  double last_token_s = 0.0;
};

// Tokens of a live request, prompt and answer so far, which the scheduler reads where they are; and the
// stamps of its keys (simulate/device.h), made as far as they are needed.
struct LivePrompt {
  std::vector<std::int32_t> tokens;  // never moves while live
  std::vector<std::uint64_t> stamps;
};

class Clients {
 public:
  explicit Clients(const Trace& trace) : trace_(trace), clients_(trace.requests.size()) {}

  // Sequence n is request n - 1 of the trace.
  static SequenceId sequence_of(std::size_t index) {
    return SequenceId{static_cast<std::uint32_t>(index + 1)};
  }
  Client& of(SequenceId sequence) { return clients_[sequence.value - 1]; }
  const TraceRequest& request(SequenceId sequence) const { return trace_.requests[sequence.value - 1]; }

  // The request becomes live: its prompt's tokens are made. They stay in place until close().
  const std::int32_t* open(SequenceId sequence);
  // The next token of its answer.
  void add_output(SequenceId sequence);
  void close(SequenceId sequence, ClientState state);
  // Stamps of its keys [0, end).
  std::span<const std::uint64_t> stamps(SequenceId sequence, std::int32_t end);
  // Token `index` of its answer.
  std::int32_t output(SequenceId sequence, std::int32_t index) const;

 private:
  const Trace& trace_;
  std::vector<Client> clients_;
  std::vector<LivePrompt> prompts_;
  std::vector<std::uint32_t> spare_;
};

}  // namespace quire::simulate
