#include "server/bench/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "server/bench/response_reader.h"

namespace quire::server::bench {
namespace {

constexpr std::size_t kMostErrorBody = 2000;

std::string error_text(int code) { return std::generic_category().message(code); }

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  int family = 0;
};

// The first address of the target that takes a connection.
Result<Address> reach(const Target& target) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &list);
  if (failed != 0) return bad_input(fmt::format("{}: {}", target.url(), gai_strerror(failed)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  int last = 0;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const bool open = connect(socket, at->ai_addr, at->ai_addrlen) == 0;
    last = errno;
    close(socket);
    if (!open) continue;
    Address address;
    std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    address.family = at->ai_family;
    return address;
  }
  return bad_input(fmt::format("nobody answers at {}: {}", target.url(), error_text(last)));
}

// One connection, with at most one request on it.
struct Connection {
  static constexpr std::size_t kNoJob = ~std::size_t{0};

  int socket = -1;
  std::size_t job = kNoJob;
  bool used_before = false;  // has carried a whole answer
  std::string out;
  std::size_t sent = 0;
  ResponseReader reader;
  EventReader events;
  bool any_byte = false;
  bool is_stream = false;

  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close_socket(); }
  bool busy() const { return job != kNoJob; }
  void close_socket() {
    if (socket >= 0) close(socket);
    socket = -1;
    used_before = false;
  }
};

class Load {
 public:
  Load(const Target& target, const Address& address, const std::vector<Job>& jobs, const LoadPlan& plan)
      : target_(target), address_(address), jobs_(jobs), plan_(plan), outcomes_(jobs.size()) {
    for (Outcome& outcome : outcomes_) outcome.begin_s = -1.0;
  }

  std::vector<Outcome> run(const std::function<bool(std::size_t)>& progress) {
    double next_progress = 0.5;
    while (ended_ < jobs_.size()) {
      begin_due();
      wait();
      check_timeouts();
      if (now() < next_progress) continue;
      next_progress = now() + 0.5;
      if (progress(ended_)) continue;
      for (auto& connection : connections_)
        if (connection->busy()) fail(*connection, "stopped");
      break;
    }
    return std::move(outcomes_);
  }

 private:
  double now() const { return seconds_since(start_); }

  void begin_due() {
    while (next_ < jobs_.size() && busy_ < static_cast<std::size_t>(plan_.clients)) {
      if (plan_.open && jobs_[next_].at_s > now()) return;
      Outcome& outcome = outcomes_[next_];
      outcome.begin_s = plan_.open ? jobs_[next_].at_s : now();
      begin(idle_connection(), next_++);
    }
  }

  Connection& idle_connection() {
    Connection* fresh = nullptr;
    for (auto& connection : connections_) {
      if (connection->busy()) continue;
      if (connection->socket >= 0) return *connection;
      fresh = connection.get();
    }
    return fresh != nullptr ? *fresh : *connections_.emplace_back(std::make_unique<Connection>());
  }

  void begin(Connection& connection, std::size_t job) {
    connection.job = job;
    connection.out = request_text(target_, jobs_[job].path, jobs_[job].body);
    connection.sent = 0;
    connection.reader = ResponseReader();
    connection.events = EventReader();
    connection.any_byte = connection.is_stream = false;
    ++busy_;
    if (connection.socket < 0) open_socket(connection);
  }

  void open_socket(Connection& connection) {
    connection.socket = ::socket(address_.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection.socket < 0) return fail(connection, "no socket: " + error_text(errno));
    const int on = 1;
    setsockopt(connection.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(connection.socket, reinterpret_cast<const sockaddr*>(&address_.bytes), address_.size) != 0 &&
        errno != EINPROGRESS)
      fail(connection, "no connection: " + error_text(errno));
  }

  int wait_ms() const {
    constexpr double kMost = 0.25;
    double seconds = kMost;
    if (plan_.open && next_ < jobs_.size() && busy_ < static_cast<std::size_t>(plan_.clients))
      seconds = std::min(seconds, jobs_[next_].at_s - now());
    return static_cast<int>(std::max(0.0, seconds) * 1e3);
  }

  void wait() {
    polled_.clear();
    polled_connections_.clear();
    for (auto& connection : connections_) {
      if (!connection->busy()) continue;
      const bool sending = connection->sent < connection->out.size();
      polled_.push_back({connection->socket, static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), 0});
      polled_connections_.push_back(connection.get());
    }
    if (poll(polled_.data(), polled_.size(), wait_ms()) <= 0) return;
    for (std::size_t i = 0; i < polled_.size(); ++i) {
      Connection& connection = *polled_connections_[i];
      if ((polled_[i].revents & POLLOUT) != 0 && connection.busy()) send_more(connection);
      if ((polled_[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && connection.busy()) receive(connection);
    }
  }

  void send_more(Connection& connection) {
    const ssize_t sent = send(connection.socket, connection.out.data() + connection.sent,
                              connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (sent >= 0) {
      connection.sent += static_cast<std::size_t>(sent);
    } else if (errno != EAGAIN && errno != EINTR && !try_again(connection)) {
      // The server may have said why before it closed: what it sent is read first.
      receive(connection);
    }
  }

  // A kept connection may be closed by the server just when it is used again: that is nobody's fault.
  bool try_again(Connection& connection) {
    if (!connection.used_before || connection.any_byte) return false;
    const std::size_t job = connection.job;
    connection.close_socket();
    --busy_;
    begin(connection, job);
    return true;
  }

  void receive(Connection& connection) {
    char bytes[16384];
    const ssize_t got = recv(connection.socket, bytes, sizeof(bytes), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) {
      const std::string why = error_text(errno);
      if (!try_again(connection)) fail(connection, why);
      return;
    }
    if (got == 0) {
      if (try_again(connection)) return;
      const Status ended = connection.reader.end();
      return ended.ok() ? complete(connection) : fail(connection, ended.error().message);
    }
    connection.any_byte = true;
    std::string body;
    const Status fed = connection.reader.feed({bytes, static_cast<std::size_t>(got)}, body);
    if (!fed.ok()) return fail(connection, fed.error().message);
    take_body(connection, body);
    if (connection.busy() && connection.reader.complete()) complete(connection);
  }

  void take_body(Connection& connection, const std::string& body) {
    Outcome& outcome = outcomes_[connection.job];
    if (!connection.reader.has_head()) return;
    outcome.status = connection.reader.status();
    connection.is_stream =
        outcome.status == 200 && connection.reader.header("content-type").rfind("text/event-stream", 0) == 0;
    if (!connection.is_stream) {
      outcome.body += body;
      return;
    }
    connection.events.feed(body);
    const double time = now();
    std::string data;
    while (connection.busy() && connection.events.next(data)) {
      const Result<StreamEvent> event = parse_event(data);
      if (!event.ok()) return fail(connection, event.error().message);
      if (!event->error.empty()) return fail(connection, event->error);
      if (event->usage.has_value()) outcome.usage = event->usage;
      if (event->has_text) note_text(outcome, time);
    }
  }

  static void note_text(Outcome& outcome, double time) {
    if (outcome.texts++ == 0) {
      outcome.first_s = time;
    } else {
      outcome.gaps_s.push_back(static_cast<float>(time - outcome.last_s));
    }
    outcome.last_s = time;
  }

  void complete(Connection& connection) {
    Outcome& outcome = outcomes_[connection.job];
    outcome.status = connection.reader.status();
    if (outcome.status != 200) outcome.error = outcome.body.substr(0, kMostErrorBody);
    if (outcome.status != 200 && outcome.error.empty())
      outcome.error = fmt::format("status {}", outcome.status);
    if (!connection.reader.keeps_alive()) connection.close_socket();
    connection.used_before = connection.socket >= 0;
    finish(connection);
  }

  void fail(Connection& connection, std::string why) {
    outcomes_[connection.job].error = std::move(why);
    connection.close_socket();
    finish(connection);
  }

  void finish(Connection& connection) {
    outcomes_[connection.job].end_s = now();
    connection.job = Connection::kNoJob;
    --busy_;
    ++ended_;
  }

  void check_timeouts() {
    for (auto& connection : connections_) {
      if (!connection->busy() || now() < outcomes_[connection->job].begin_s + plan_.timeout_s) continue;
      fail(*connection, fmt::format("no whole answer within {} s", plan_.timeout_s));
    }
  }

  const Target& target_;
  const Address& address_;
  const std::vector<Job>& jobs_;
  LoadPlan plan_;
  std::vector<Outcome> outcomes_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<pollfd> polled_;
  std::vector<Connection*> polled_connections_;
  std::size_t next_ = 0;
  std::size_t busy_ = 0;
  std::size_t ended_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

Result<std::vector<Outcome>> run_load(const Target& target, const std::vector<Job>& jobs,
                                      const LoadPlan& plan,
                                      const std::function<bool(std::size_t)>& progress) {
  QUIRE_TRY(address, reach(target));
  return Load(target, address, jobs, plan).run(progress);
}

}  // namespace quire::server::bench
