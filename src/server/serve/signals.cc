#include "server/serve/signals.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace quire::server {

namespace {

int pipe_ends[2] = {-1, -1};
std::atomic<bool> ending{false};

void on_signal(int signal) {
  if (ending.exchange(true)) _exit(128 + signal);
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  static_cast<void>(!write(pipe_ends[1], &byte, 1));
  errno = error;
}

}  // namespace

Status take_signals() {
  if (pipe2(pipe_ends, O_CLOEXEC) != 0)
    return no_resources(fmt::format("no pipe for signals: {}", std::strerror(errno)));
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return {};
}

int wait_for_end() {
  unsigned char byte = 0;
  while (read(pipe_ends[0], &byte, 1) != 1) {
  }
  return byte;
}

}  // namespace quire::server
