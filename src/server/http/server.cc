#include "server/http/server.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <random>
#include <thread>

#include "server/http/connection.h"
#include "server/http/descriptors.h"

namespace quire::server {

namespace net = boost::asio;
using boost::beast::error_code;
using net::ip::tcp;

namespace {

constexpr int kBacklog = 1024;
// Connections over the limit that are being told so; more are closed without a word.
constexpr std::int64_t kMostRefusals = 64;
// Descriptors that stay free for everything else: model files, pipes, records.
constexpr std::int64_t kSpareDescriptors = 32;
constexpr int kSendBuffer = 256 << 10;
constexpr std::chrono::milliseconds kEvictable{500};
// The I/O thread sleeps nearly always and its work is short: it goes before compute threads where we may say
// so.
constexpr int kNicer = 10;  // than the rest of the process

Result<int> allowed_connections(int asked) {
  const std::int64_t other = open_descriptors() + kSpareDescriptors + kMostRefusals;
  const std::int64_t limit = raise_descriptor_limit(asked + other);
  if (limit - other < 1)
    return no_resources(
        fmt::format("this process may open {} files and {} are needed beside the connections: raise "
                    "the limit (ulimit -n)",
                    limit, other));
  return static_cast<int>(std::min<std::int64_t>(asked, limit - other));
}

std::string text_of(const tcp::endpoint& end) {
  return end.address().is_v6() ? fmt::format("[{}]:{}", end.address().to_string(), end.port())
                               : fmt::format("{}:{}", end.address().to_string(), end.port());
}

Result<std::vector<tcp::endpoint>> resolve(net::io_context& io, std::string host, int port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error) return bad_input(fmt::format("--host {}: {}", host, error.message()));
  std::vector<tcp::endpoint> ends;
  for (const auto& entry : found) {
    if (std::find(ends.begin(), ends.end(), entry.endpoint()) == ends.end()) ends.push_back(entry.endpoint());
  }
  return ends;
}

}  // namespace

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, const Router& router);
  ~HttpServerImpl() override { HttpServerImpl::stop(); }

  Status bind();
  std::vector<std::string> addresses() const override { return addresses_; }
  int port() const override { return port_; }
  int connections_limit() const override { return hub_->options.connections; }
  void start() override;
  void drain() override;
  HttpServerStats stats() const override;
  void stop() override;

 private:
  Status bind_one(tcp::endpoint end);
  net::awaitable<void> accept(tcp::acceptor& acceptor);
  void take(tcp::socket socket);
  bool make_room();
  void deliver();
  void close_listeners();

  std::unique_ptr<Hub> hub_;
  std::vector<tcp::acceptor> acceptors_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  std::uint64_t next_id_ = 1;
  std::int64_t refusals_ = 0;
  std::thread thread_;
  bool stopped_ = false;
};

HttpServerImpl::HttpServerImpl(const HttpServerOptions& options, const Router& router)
    : hub_(std::make_unique<Hub>(options, router)) {
  hub_->outbox = std::make_shared<Outbox>([this] { net::post(hub_->io, [this] { deliver(); }); });
  hub_->request_prefix = fmt::format("req-{:08x}", std::random_device()());
}

Status HttpServerImpl::bind() {
  QUIRE_TRY(ends, resolve(hub_->io, hub_->options.host, hub_->options.port));
  Status last = bad_input(fmt::format("--host {} has no address", hub_->options.host));
  for (tcp::endpoint& end : ends) {
    if (port_ != 0) end.port(static_cast<std::uint16_t>(port_));  // --port 0: the same one for both families
    const Status status = bind_one(end);
    if (!status.ok()) last = status;
  }
  // One family is enough: a machine without IPv6 still names ::1 "localhost".
  return acceptors_.empty() ? last : Status();
}

Status HttpServerImpl::bind_one(tcp::endpoint end) {
  tcp::acceptor acceptor(hub_->io);
  error_code error;
  const auto failed = [&](const char* what) {
    return no_resources(fmt::format("cannot {} {}: {}; choose another --port (0: any free one) or --host",
                                    what, text_of(end), error.message()));
  };
  if (acceptor.open(end.protocol(), error)) return failed("open");
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (end.protocol() == tcp::v6())
    acceptor.set_option(net::ip::v6_only(!end.address().is_unspecified()), error);
  if (acceptor.bind(end, error)) return failed("bind");
  if (acceptor.listen(kBacklog, error)) return failed("listen on");
  end = acceptor.local_endpoint(error);
  port_ = end.port();
  addresses_.push_back(text_of(end));
  acceptors_.push_back(std::move(acceptor));
  return {};
}

void HttpServerImpl::start() {
  for (tcp::acceptor& acceptor : acceptors_) net::co_spawn(hub_->io, accept(acceptor), net::detached);
  thread_ = std::thread([this] {
    const auto self = static_cast<id_t>(syscall(SYS_gettid));
    static_cast<void>(setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) - kNicer));
    const auto work = net::make_work_guard(hub_->io);
    hub_->io.run();
  });
}

net::awaitable<void> HttpServerImpl::accept(tcp::acceptor& acceptor) {
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(net::as_tuple(net::use_awaitable));
    if (!error) {
      take(std::move(socket));
    } else if (error != net::error::connection_aborted && acceptor.is_open()) {
      // Out of descriptors or memory: others hold them, and what ends gives some back.
      net::steady_timer pause(hub_->io, std::chrono::milliseconds(100));
      co_await pause.async_wait(net::as_tuple(net::use_awaitable));
    }
  }
}

void HttpServerImpl::take(tcp::socket socket) {
  ++hub_->counts.accepted;
  const bool too_many = !make_room();
  if (too_many) {
    ++hub_->counts.refused;
    if (refusals_ >= kMostRefusals) return;  // closes it
    ++refusals_;
  } else {
    ++hub_->counts.connections;
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(net::socket_base::keep_alive(true), ignored);
  // Bounds what a slow reader costs in the kernel, beside stream_buffer here.
  socket.set_option(net::socket_base::send_buffer_size(kSendBuffer), ignored);
  const auto user_timeout = static_cast<unsigned>(hub_->options.write_time.count());
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
  const std::uint64_t id = next_id_++;
  auto connection = std::make_shared<Connection>(*hub_, std::move(socket), id);
  hub_->connections.emplace(id, connection);
  net::co_spawn(hub_->io, connection->run(too_many),
                [this, id, too_many, connection](const std::exception_ptr&) {
                  connection->end();
                  hub_->connections.erase(id);
                  if (too_many)
                    --refusals_;
                  else
                    --hub_->counts.connections;
                });
}

// Of one more connection. Those that wait for a client to say something go first.
bool HttpServerImpl::make_room() {
  if (hub_->counts.connections < hub_->options.connections) return true;
  if (hub_->waiting.empty()) return false;
  Connection* longest = hub_->waiting.front();
  if (Clock::now() - longest->waiting_since() < kEvictable) return false;
  longest->end();
  return true;
}

void HttpServerImpl::deliver() {
  Outbox::Mail mail = hub_->outbox->take();
  for (const std::uint64_t id : mail.connections) {
    if (const auto found = hub_->connections.find(id); found != hub_->connections.end())
      found->second->notify();
  }
  for (const auto& call : mail.calls) call();
}

void HttpServerImpl::close_listeners() {
  error_code ignored;
  for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
}

void HttpServerImpl::drain() {
  net::post(hub_->io, [this] {
    hub_->draining = true;
    close_listeners();
    while (!hub_->waiting.empty()) hub_->waiting.front()->end();
  });
}

HttpServerStats HttpServerImpl::stats() const {
  const auto& counts = hub_->counts;
  return {.connections = counts.connections,
          .accepted = counts.accepted,
          .refused = counts.refused,
          .requests = counts.requests,
          .left = counts.left,
          .slow = counts.slow,
          .body_bytes = counts.body_bytes};
}

void HttpServerImpl::stop() {
  if (std::exchange(stopped_, true)) return;
  hub_->background.stop();
  if (!thread_.joinable()) return hub_->outbox->close();
  net::post(hub_->io, [this] {
    close_listeners();
    for (const auto& [id, connection] : hub_->connections) connection->end();
    // After what end() woke.
    net::post(hub_->io, [this] { hub_->io.stop(); });
  });
  thread_.join();
  hub_->outbox->close();
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerOptions& options,
                                                       const Router& router) {
  if (std::find(options.api_keys.begin(), options.api_keys.end(), "") != options.api_keys.end())
    return bad_input("an API key is empty: it would let everybody in; leave it out or name one");
  QUIRE_TRY(connections, allowed_connections(options.connections));
  HttpServerOptions possible = options;
  possible.connections = connections;
  auto server = std::make_unique<HttpServerImpl>(possible, router);
  QUIRE_TRY_STATUS(server->bind());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace quire::server
