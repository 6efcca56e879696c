// Connection: one client's socket, as a coroutine on the I/O thread: wait for a request, read it, have it
// handled, write its answer, again. Only connection.cc and server.cc include this header, for the library's
// sake.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "server/http/exchange.h"
#include "server/http/server.h"
#include "server/threads/background.h"

namespace quire::server {

class Connection;

// What the connections of one server share. The I/O thread's, but for the counts.
struct Hub {
  Hub(const HttpServerOptions& server_options, const Router& server_router)
      : options(server_options), router(server_router) {}

  const HttpServerOptions options;
  const Router& router;
  boost::asio::io_context io{1};
  std::shared_ptr<Outbox> outbox;
  Background background;
  std::unordered_map<std::uint64_t, std::shared_ptr<Connection>> connections;
  std::list<Connection*> waiting;  // for the head of a request, the longest first
  bool draining = false;
  std::uint64_t next_request = 1;
  std::string request_prefix;  // "req-" and random digits: ids differ between runs
  struct {
    std::atomic<std::int64_t> connections{0}, accepted{0}, refused{0}, requests{0}, left{0}, slow{0},
        body_bytes{0};
  } counts;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, boost::asio::ip::tcp::socket socket, std::uint64_t id);

  // Until the client is gone. `refuse`: says that there are too many connections, and ends.
  boost::asio::awaitable<void> run(bool refuse);
  void notify();  // the exchange has something
  void end();     // now, whatever it does
  Clock::time_point waiting_since() const { return waiting_since_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Got { bytes, nothing_in_time, gone };

  // Coroutines take only values that need no destructor; the rest goes through members. GCC 12 destroys some
  // temporaries of a co_await expression twice.
  boost::asio::awaitable<bool> serve_one();
  boost::asio::awaitable<bool> await_request();
  boost::asio::awaitable<bool> read_head();
  boost::asio::awaitable<bool> read_body();
  boost::asio::awaitable<bool> refuse();  // with refusal_
  boost::asio::awaitable<bool> respond();
  boost::asio::awaitable<bool> write();  // out_
  boost::asio::awaitable<void> linger();
  boost::asio::awaitable<Got> more(Clock::time_point deadline);
  template <class Predicate>
  boost::asio::awaitable<bool> wait(Clock::time_point deadline, Predicate predicate);

  void begin_request();
  void take_head();
  HttpRequest make_request();
  bool route();
  bool check_head();
  bool refuse_with(HttpAnswer answer);
  void handle();
  void report(bool whole);
  bool account_body();
  void release_body();
  void parse_more(boost::beast::error_code& error);
  void begin_waiting();
  void end_waiting();
  bool may_read() const;
  void read_more();
  void write_more();

  Hub& hub_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;  // ends a wait(): by its time, or cancelled by whoever changed something
  const std::uint64_t id_;
  std::string client_;

  std::string in_;        // bytes that no parser took yet
  std::string chunk_;     // where a read puts its bytes
  bool reading_ = false;  // chunk_ belongs to a read
  bool gone_ = false;     // the client sends no more: it closed, or the connection broke
  bool ended_ = false;    // by us

  std::string out_;  // belongs to a write while writing_
  std::size_t written_ = 0;
  bool writing_ = false;
  bool write_failed_ = false;
  Clock::time_point progress_;

  std::optional<Parser> parser_;
  HttpRequest request_;
  Exchange::Setup setup_;     // of its answer
  HttpAnswer refusal_;        // status 0: none
  bool unknown_end_ = false;  // of the request: what follows its head may be its body
  HttpAccess access_;
  Router::Match match_;
  Clock::time_point waiting_since_;
  std::optional<std::list<Connection*>::iterator> waiting_place_;
  Clock::time_point head_complete_;
  std::int64_t body_held_ = 0;  // of Hub::counts.body_bytes
  std::shared_ptr<Exchange> exchange_;
  bool ready_ = false;   // the exchange has something to take
  bool linger_ = false;  // read and drop what the client still sends, or it may not get our last words
};

}  // namespace quire::server
